"""A run written down as a trace file, so that it can be replayed exactly."""

from loadgen.recording.record import Recorded, TraceFormat, record_trace

__all__ = ["Recorded", "TraceFormat", "record_trace"]
