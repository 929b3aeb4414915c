"""Errors of traces."""

from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.errors import TraceFormatError, UsageError
from serving.errors import ConfigError


class TraceError(ConfigError):
    """A trace cannot be read or has an invalid request. The message names file and line, and what to do."""


@contextmanager
def refused_in_our_terms() -> Iterator[None]:
    """Convert the errors of the trace reader to `TraceError` and `ConfigError`, with the same message.

    Raises: TraceError, ConfigError.
    """
    try:
        yield
    except TraceFormatError as error:
        raise TraceError(str(error)) from None
    except UsageError as error:
        raise ConfigError(str(error)) from None
