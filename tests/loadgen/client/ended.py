"""Completed exchanges, as a test describes them."""

from loadgen.client.digest import Digest, conclude, reader_of
from loadgen.client.exchange import Exchange, Failure
from loadgen.plan import Behaviour

SSE = "text/event-stream; charset=utf-8"


def exchange(
    *parts: bytes,
    status: int = 200,
    content_type: str = SSE,
    failure: Failure | None = None,
    behaviour: Behaviour | None = None,
    retry_after: str = "",
) -> Exchange:
    """A completed one whose parts arrived at 1, 2, 3 ... s."""
    made = Exchange("r-1", behaviour or Behaviour(), 0.5, b"{}")
    made.status, made.content_type, made.retry_after = status, content_type, retry_after
    made.times, made.parts = [float(number) for number in range(1, len(parts) + 1)], list(parts)
    made.first_byte_s, made.ended_s = 0.9, float(len(parts))
    made.failure, made.error = failure, "what went wrong" if failure else ""
    return made


def digest(exchange: Exchange, expected_tokens: int | None = None) -> Digest:
    """A completed exchange, read all at once. Effects: takes its parts."""
    reader = reader_of(exchange)
    reader.feed(*exchange.take_parts())
    return conclude(exchange, reader, expected_tokens)
