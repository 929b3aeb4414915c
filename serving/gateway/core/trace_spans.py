"""Spans of a finished timeline, for tracing systems: the request, with each part as a child. Values, no protocol.

There are no further measurements: a span is a part of the timeline by another name. Ids are derived from the request's
own, so that the same request has the same spans.
"""

from collections.abc import Iterator
from hashlib import blake2b

from msgspec import Struct

from serving.gateway.core.timeline import RequestTimes, TimePart

Attribute = str | int | float | tuple[str, ...]
SAMPLED = 1
"""W3C's sampled flag."""
_SHARES = 1 << 56


class TraceSpan(Struct, frozen=True):
    """One span. Times in seconds since 1970; `parent` is empty for the root of a trace."""

    trace_id: bytes
    span_id: bytes
    parent: bytes
    name: str
    begun: float
    ended: float
    attributes: dict[str, Attribute]
    failed: str = ""
    is_request: bool = False


def is_sampled(times: RequestTimes, share: float) -> bool:
    """Whether to trace a request: as its client's trace context requests, otherwise a share of all.

    Args:
        share: of requests without a trace context, 0 to 1.
    """
    if times.trace:
        return bool(int(times.trace[-2:], 16) & SAMPLED)
    return int.from_bytes(_own_id(times)[:7], "big") < share * _SHARES


def trace_id_of(times: RequestTimes) -> str:
    """The request's trace id, hexadecimal."""
    return times.trace.split("-")[1] if times.trace else _own_id(times).hex()


def spans_of(times: RequestTimes, model: str) -> list[TraceSpan]:
    """The request's span, then its parts'.

    Args:
        model: the served name.
    """
    trace_id = bytes.fromhex(trace_id_of(times))
    parent = bytes.fromhex(times.trace.split("-")[2]) if times.trace else b""
    own = _digest(8, times.names[:1], "request")
    root = TraceSpan(
        trace_id, own, parent, f"chat {model}", times.arrived, times.arrived + times.total_s,
        _request_attributes(times, model), times.reason or times.outcome if times.failed else "", is_request=True,
    )  # fmt: skip
    return [root, *_parts(times, trace_id, own)]


def _request_attributes(times: RequestTimes, model: str) -> dict[str, Attribute]:
    """Attributes, with OpenTelemetry's names for generative models if there are any."""
    first = times.choices[0].first_token_s if times.choices else None
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "cloudmatrix",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": times.request_id,
        "gen_ai.response.finish_reasons": (times.outcome,),
        "gen_ai.usage.input_tokens": times.prompt_tokens,
        "gen_ai.usage.output_tokens": times.tokens,
        "cloudmatrix.namespace": times.namespace,
        "cloudmatrix.resumed": times.resumed,
        "cloudmatrix.cause": times.cause,
        **({"gen_ai.server.time_to_first_token": first} if first is not None else {}),
    }


def _parts(times: RequestTimes, trace_id: bytes, parent: bytes) -> Iterator[TraceSpan]:
    for choice in times.choices:
        for number, part in enumerate(choice.parts):
            span_id = _digest(8, times.names[:1], f"{choice.index}/{number}")
            begun = times.arrived + part.start_s
            attributes = {"cloudmatrix.choice": choice.index, **_part_attributes(part)}
            yield TraceSpan(trace_id, span_id, parent, part.kind, begun, begun + part.seconds, attributes)


def _part_attributes(part: TimePart) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "host.name": part.host,
        "cloudmatrix.replica": part.replica,
        "cloudmatrix.source": part.source,
        "cloudmatrix.tokens": part.tokens,
        "cloudmatrix.frames": part.frames,
        "cloudmatrix.bytes": part.nbytes,
        "cloudmatrix.predicted_npu_s": part.predicted_s,
        **{f"cloudmatrix.session.{name.lower()}_s": seconds for name, seconds in part.sessions.parts.items()},
    }
    return {name: value for name, value in found.items() if value}


def _own_id(times: RequestTimes) -> bytes:
    return _digest(16, times.names[:1], "trace")


def _digest(size: int, names: tuple[str, ...], what: str) -> bytes:
    return blake2b("\0".join((*names, what)).encode(), digest_size=size).digest()
