"""Request ids that clients set, in a header or in the body."""

import re

from starlette.types import Scope

MAX_REQUEST_ID = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C's trace context: version, trace, span, flags."""


def usable_request_id(value: str | None) -> str | None:
    """The client's id if it is safe to repeat in a header and a log: printable ASCII of moderate length."""
    if value and len(value) <= MAX_REQUEST_ID and value.isascii() and value.isprintable():
        return value
    return None


def trace_names(scope: Scope) -> tuple[tuple[str, ...], str]:
    """The client's ids of an exchange, and its W3C trace context, empty if it has none."""
    state = scope.get("state", {})
    names = tuple(name for name in (state.get("request_id"), state.get("exchange_id")) if name)
    given = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
    trace = given.decode("latin-1")
    return names, trace if _TRACEPARENT.fullmatch(trace) else ""
