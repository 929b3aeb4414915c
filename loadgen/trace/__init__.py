"""Traces of our own: a run written down so that it can be replayed exactly, and read by a simulator."""

from loadgen.trace.describe import TraceSummary, describe
from loadgen.trace.file import TraceHeader, TraceRequest, read_trace, write_trace
from loadgen.trace.record import Recorded, TraceFormat, record_trace
from loadgen.trace.workload import TraceReplay

__all__ = [
    "Recorded",
    "TraceFormat",
    "TraceHeader",
    "TraceReplay",
    "TraceRequest",
    "TraceSummary",
    "describe",
    "read_trace",
    "record_trace",
    "write_trace",
]
