"""Input of a simulation: requests with lengths, arrival times and, where a trace has them, prefix names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class TraceRequest(NamedTuple):
    """One request of a trace.

    Attributes:
        arrival_s: from the start of the trace [s]; requests are in order of arrival.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        blocks: prefix identity of each of the prompt's leading blocks of `RequestStream.block_tokens` tokens (the last
            may be partly filled): equal numbers at equal positions mean equal prompts up to that block. Empty = not
            known, hence no shared prefix.
        key: API key of the request; several configured keys take turns.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Stream of requests, read once from start to end.

    Attributes:
        name: for reports: file name and how it was scaled.
        requests: in order of arrival. May be lazy; one run consumes it unless it is a sequence.
        count: number of requests, for progress; None = not known.
        duration_s: last arrival [s], for progress; None = not known.
        block_tokens: tokens per entry of `blocks`.
        concurrency: open requests of a closed loop, which sends a request as soon as another has ended and ignores
            arrival times. None = an open loop.
        notes: how the reader interpreted unusual records, one sentence each; filled as requests are read.
    """

    name: str
    requests: Iterable[TraceRequest]
    count: int | None = None
    duration_s: float | None = None
    block_tokens: int = 512
    concurrency: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)

    def closed(self, concurrency: int) -> "RequestStream":
        """The same requests in a closed loop, whose duration is not known in advance."""
        name = f"{self.name}, {concurrency:,} at a time"
        return replace(self, name=name, duration_s=None, concurrency=concurrency)
