"""What can be wrong with a trace."""

from pathlib import Path

from serving.errors import ConfigError


class TraceError(ConfigError):
    """A trace cannot be read, or holds what no request can be. The message names file and line, and what to do."""


def trace_error(path: Path, line: int, problem: str) -> TraceError:
    """A `TraceError` about one line, in the form that editors jump to."""
    return TraceError(f"{path}:{line}: {problem}")
