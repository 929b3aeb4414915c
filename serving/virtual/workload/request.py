"""Input of a simulation: requests with lengths, arrival times and, where a trace has them, prefix names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class TraceRequest(NamedTuple):
    """One request of a trace.

    Attributes:
        arrival_s: from the start of the trace [s]; requests come in order of arrival.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        blocks: prefix identity of each of the prompt's leading blocks of `RequestStream.block_tokens` tokens (the last
            may be partly filled): equal numbers at equal places mean an equal prompt up to there. Empty = nothing
            known, hence nothing shared.
        key: whose it is: keys have turns where the configuration has several.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """A stream of requests, read once from its beginning to its end.

    Attributes:
        name: for reports: file name and how it was scaled.
        requests: in order of arrival. May be lazy; a workload is used up by one run unless it is a sequence.
        count: how many there are, for progress; None = not known.
        duration_s: last arrival [s], for progress; None = not known.
        block_tokens: tokens that one entry of `blocks` stands for.
        concurrency: of a closed loop: so many requests at a time, each sent as soon as another one has ended; arrival
            times do not count. None = an open loop.
        notes: what the trace's reader had to make sense of, one sentence each; filled as requests are read.
    """

    name: str
    requests: Iterable[TraceRequest]
    count: int | None = None
    duration_s: float | None = None
    block_tokens: int = 512
    concurrency: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)

    def closed(self, concurrency: int) -> "RequestStream":
        """The same requests in a closed loop. Nobody knows beforehand how long that takes."""
        name = f"{self.name}, {concurrency:,} at a time"
        return replace(self, name=name, duration_s=None, concurrency=concurrency)
