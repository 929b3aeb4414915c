"""A run written down as a trace file, so that it can be replayed exactly."""

from loadgen.recording.run_to_trace import Recorded, record_trace

__all__ = ["Recorded", "record_trace"]
