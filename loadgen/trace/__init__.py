"""Traces of requests: read and written here for every tool.

Imports only leaf modules of this package, so that the simulator and the load generator share these readers. A format is
a module with a reader (see `request.Trace`) and what writes its lines.
"""

from loadgen.trace.describe import TraceSummary, describe
from loadgen.trace.find import FORMATS, Reading, open_trace
from loadgen.trace.recorded import RecordedTrace, TraceHeader, write_recorded
from loadgen.trace.request import Trace, TraceRecord, in_sessions, repeated_blocks
from loadgen.trace.servegen import ServeGenTrace
from loadgen.trace.tracelab import TraceLabTrace
from loadgen.trace.weka import WekaTrace
from loadgen.trace.write import KEEPS_IDS, TraceForm, convert, write_requests

__all__ = [
    "FORMATS",
    "KEEPS_IDS",
    "Reading",
    "RecordedTrace",
    "ServeGenTrace",
    "Trace",
    "TraceForm",
    "TraceHeader",
    "TraceLabTrace",
    "TraceRecord",
    "TraceSummary",
    "WekaTrace",
    "convert",
    "describe",
    "in_sessions",
    "open_trace",
    "repeated_blocks",
    "write_recorded",
    "write_requests",
]
