"""Errors of traces."""

from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.errors import TraceFormatError, UsageError
from serving.errors import ConfigError


class TraceError(ConfigError):
    """A trace cannot be read, or holds what no request can be. The message names file and line, and what to do."""


@contextmanager
def refused_in_our_terms() -> Iterator[None]:
    """Refuse what the trace's reader refuses, in the same words.

    Raises: TraceError, ConfigError.
    """
    try:
        yield
    except TraceFormatError as error:
        raise TraceError(str(error)) from None
    except UsageError as error:
        raise ConfigError(str(error)) from None
