"""Traces of requests: read and written here for every tool.

Imports nothing of ours but the leaf modules of this package (`errors`, `json_text`, `output`, `regular_file`), so that
the simulator can read what the load generator reads.
"""

from loadgen.trace.describe import TraceSummary, describe
from loadgen.trace.file import TraceHeader, TraceRequest, read_trace, write_trace

__all__ = ["TraceHeader", "TraceRequest", "TraceSummary", "describe", "read_trace", "write_trace"]
