"""A gateway's traffic counts for scaling: requests, tokens, SLOs met and missed.

Tokens count when they arrive from instances, not when a client reads them: a slow reader is no reason to add instances.
Latencies are counted in fine buckets, so that percentiles over several gateways can be computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from serving.ids import ReplicaId
from serving.values.signals import Traffic
from serving.values.system_tally import HostRow, SystemTally

BUCKETS_PER_DECADE = 10
SHORTEST_S = 1e-3
LONGEST_S = 1e3
_DECADES = round(math.log10(LONGEST_S / SHORTEST_S))
BOUNDS_S = tuple(SHORTEST_S * 10 ** (i / BUCKETS_PER_DECADE) for i in range(_DECADES * BUCKETS_PER_DECADE + 1))
"""Upper bounds of the buckets; one more bucket counts longer times."""


NoticeKind = Literal["died", "frozen", "left", "back", "poison", "audit"]


class InstanceNotice(Struct, frozen=True):
    """An event to show to people: an instance ended or returned, a request killed its instances, or an audit.

    Args:
        pool, replica: empty if no single instance is concerned.
        streams: sequences of this gateway that ran there and continue on another instance.
        tokens: their output tokens so far, which are not computed or sent again.
    """

    kind: NoticeKind
    pool: str
    replica: ReplicaId
    reason: str
    streams: int = 0
    tokens: int = 0


class GatewayReport(Struct, frozen=True):
    """One gateway's counts, as sent to the scaling board.

    Args:
        gateway: a name that no later start of the gateway will have.
        running: its requests in progress, including those that wait for an instance.
        ttft, tpot: requests by bucket of `BOUNDS_S`, in total.
        starved: whether requests wait for a role that has no instance.
        known: whether an earlier report was received, by this board or a previous one.
        address: at which it listens for other gateways; None = it does not.
        notices: events since the last report that was received.
    """

    gateway: str
    traffic: Traffic
    running: int
    ttft: tuple[int, ...]
    tpot: tuple[int, ...]
    starved: bool = False
    known: bool = False
    address: tuple[str, int] | None = None
    notices: tuple[InstanceNotice, ...] = ()


class BoardReply(Struct, frozen=True):
    """Response of the scaling board to a gateway's report.

    Args:
        targets: replicas requested now, by pool.
        others: number of other gateways; `others_running`, `others_queued`: their requests in the pools and waiting.
        peers: address of each of them for its peers.
        asleep: pools at zero that wake when a request waits: there is no manual hold, and an autoscaler runs.
        tally: for `/metrics`; None before the board's first tick.
        hosts: of the cluster, including lost ones; empty before the board's first tick.
    """

    targets: dict[str, int]
    others: int = 0
    others_running: int = 0
    others_queued: int = 0
    peers: dict[str, tuple[str, int]] = {}
    asleep: tuple[str, ...] = ()
    tally: SystemTally | None = None
    hosts: tuple[HostRow, ...] = ()


@dataclass(slots=True)
class RequestMeter:
    """One accepted request. `first` and `last` are the times of its first and its latest token."""

    meter: "TrafficMeter"
    prompt_tokens: int
    arrived: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    ended: bool = False

    def delivered(self, sequence: int, tokens: int, now: float) -> None:
        """Count new tokens of one of the gateway's sequences."""
        if not tokens:
            return
        if not self.first:
            self.first = now
            self.meter.first_token(self, now - self.arrived)
        self.last = now
        self.tokens += tokens
        self.sequences[sequence] = self.sequences.get(sequence, 0) + tokens
        self.meter.generated_tokens += tokens

    def prompt_done(self, computed_tokens: int) -> None:
        """Count the computed tokens of one of its prompts."""
        self.meter.uncached_tokens += max(0, computed_tokens)

    def turned_away(self) -> None:
        """Count a request that ends with 429 or 503, after waiting."""
        self.meter.rejected += 1

    def end(self) -> None:
        """Count the end of a request, successful or not. Safe to call twice."""
        if not self.ended:
            self.ended = True
            self.meter.request_over(self)


class TrafficMeter:
    """All requests of one gateway. Used from its event loop.

    Args:
        gateway: name of this gateway process.
        ttft_s, tpot_s: SLOs [s].
        time_scale: seconds of the SLOs' clock per second of the gateway's clock; not 1 on simulated devices.
    """

    def __init__(self, gateway: str, ttft_s: float, tpot_s: float, time_scale: float = 1.0) -> None:
        self._gateway = gateway
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s
        self._scale = time_scale
        self._waiting: dict[int, RequestMeter] = {}
        self._open = 0
        self._ttft = [0] * (len(BOUNDS_S) + 1)
        self._tpot = [0] * (len(BOUNDS_S) + 1)
        self._met = {"ttft": 0, "tpot": 0}
        self._missed = {"ttft": 0, "tpot": 0}
        self.arrived = self.arrived_tokens = self.uncached_tokens = 0
        self.finished = self.generated_tokens = self.rejected = 0

    def set_slo(self, ttft_s: float, tpot_s: float) -> None:
        """Apply other SLOs to later requests; earlier counts are unchanged."""
        self._ttft_s, self._tpot_s = ttft_s, tpot_s

    def accepted(self, prompt_tokens: int, now: float) -> RequestMeter:
        """Count an accepted request and return its meter.

        Args:
            prompt_tokens: of all its sequences.
        """
        request = RequestMeter(self, prompt_tokens, now)
        self.arrived += 1
        self.arrived_tokens += prompt_tokens
        self._open += 1
        self._waiting[id(request)] = request
        return request

    def refused(self, prompt_tokens: int) -> None:
        """Count a request refused with 429 or 503, as arrived and finished."""
        self.arrived += 1
        self.arrived_tokens += prompt_tokens
        self.rejected += 1
        self.finished += 1

    def first_token(self, request: RequestMeter, ttft_s: float) -> None:
        """Count a request's first token."""
        self._waiting.pop(id(request), None)
        self._judge("ttft", self._ttft, ttft_s, self._ttft_s)

    def request_over(self, request: RequestMeter) -> None:
        """Count a request's end."""
        self._waiting.pop(id(request), None)
        self._open -= 1
        self.finished += 1
        longest = max(request.sequences.values(), default=0)
        if longest > 1:
            self._judge("tpot", self._tpot, (request.last - request.first) / (longest - 1), self._tpot_s)

    def report(self, now: float, queued: int, queued_tokens: int, *, starved: bool) -> GatewayReport:
        """All counts, and the current queue.

        Args:
            queued: requests waiting in the gateway; `queued_tokens`: their prompt tokens.
            starved: whether some of them wait for a role without an instance.
        """
        oldest = next(iter(self._waiting.values()), None)
        traffic = Traffic(
            arrived=self.arrived,
            arrived_tokens=self.arrived_tokens,
            uncached_tokens=self.uncached_tokens,
            finished=self.finished,
            generated_tokens=self.generated_tokens,
            ttft_met=self._met["ttft"],
            ttft_missed=self._missed["ttft"],
            tpot_met=self._met["tpot"],
            tpot_missed=self._missed["tpot"],
            rejected=self.rejected,
            queued=queued,
            queued_tokens=queued_tokens,
            oldest_wait_s=(now - oldest.arrived) * self._scale if oldest is not None else 0.0,
        )
        return GatewayReport(self._gateway, traffic, self._open, tuple(self._ttft), tuple(self._tpot), starved)

    def _judge(self, kind: str, buckets: list[int], took_s: float, slo_s: float) -> None:
        took_s *= self._scale
        buckets[bucket_of(took_s)] += 1
        (self._met if took_s <= slo_s else self._missed)[kind] += 1


def bucket_of(seconds: float) -> int:
    """Index of a time's bucket."""
    if seconds <= SHORTEST_S:
        return 0
    return min(len(BOUNDS_S), math.ceil(math.log10(seconds / SHORTEST_S) * BUCKETS_PER_DECADE - 1e-9))


def percentile(counts: Sequence[float], share: float) -> float | None:
    """The time below which a share of all lies; None if there are none.

    Returns: interpolated within its bucket, on a logarithmic scale; times beyond the last bound count as that bound.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted, seen = share * total, 0.0
    for index, count in enumerate(counts):
        if count > 0 and seen + count >= wanted:
            if index >= len(BOUNDS_S):
                return BOUNDS_S[-1]
            within = (wanted - seen) / count
            return float(BOUNDS_S[index] * 10 ** ((within - 1) / BUCKETS_PER_DECADE))
        seen += count
    return BOUNDS_S[-1]
