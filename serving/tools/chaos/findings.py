"""Findings of a run, computed from its recorded results. Pure.

The pause of a stream because of a fault is measured at the client. The loss of an instance has stopped a stream if it
got no token for a while, in a gap that started within `FELT_S` of the fault: for `RESUMED_GAP_S` if the system reports
that the request continued on another instance (`usage.resumptions`), for `PAUSE_S` if it does not: then the instance
was frozen for a moment, or the whole machine was busy, which counts against the system, too.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hardware.faults import FaultKind
from serving.faults.schedule import GRAVE
from serving.tools.chaos.asks import ChoiceSoFar, StreamedAnswer
from serving.tools.chaos.chaos_result import ChaosRun, Down, Event
from serving.values.pool_kinds import ENGINE_POOLS

# Latency of a tenant's requests during another tenant's flood, compared with their latency alone. Pure.
#
# "Alone" are the steady load's requests whose wait overlapped no fault; "beside" are those sent during a flood, unless
# another fault overlapped their wait as well.

MOST_TIMES = 2.0
"""Factor on a tenant's p99 alone that its p99 during another's flood may reach, plus one step."""
AFTER_S = 0.5
"""A fault still counts for so long after its end: the engines drop what its clients have left."""


@dataclass(frozen=True, slots=True)
class BesideFlood:
    """One latency of the load [s]; p99 is None where no request was measured.

    Args:
        name: of the latency.
        alone, beside: measured requests.
        limit_s: maximum of p99 during a flood; None if no request was measured alone.
    """

    name: str
    alone: int
    beside: int
    alone_p99_s: float | None
    beside_p99_s: float | None
    limit_s: float | None

    @property
    def fair(self) -> bool:
        """Whether it was measured, and within its limit."""
        return self.beside_p99_s is not None and self.limit_s is not None and self.beside_p99_s <= self.limit_s


def most_beside_flood(alone_p99_s: float, step_s: float) -> float:
    """Maximum of a tenant's p99 during another's flood [s]."""
    return MOST_TIMES * alone_p99_s + step_s


def beside_floods(events: Sequence[Event], answers: Iterable[StreamedAnswer]) -> tuple[BesideFlood, ...]:
    """Time to first token of streams, and whole time of short responses; empty if there was no flood.

    One step is the median time between two pieces of a stream that ran alone.
    """
    faults = [event for event in events if event.hit]
    floods = [fault for fault in faults if fault.kind == "flood"]
    if not floods:
        return ()
    load = [answer for answer in answers if answer.burst is None]
    alone_only = [answer for answer in load if answer.outcome == "finished" and not _met(answer, faults)]
    step_s = quantile(sorted(gap for answer in alone_only for gap in _gaps(answer)), 0.5) or 0.0
    found = []
    for name, latency in _LATENCIES.items():
        alone: list[float] = []
        beside: list[float] = []
        for answer in load:
            waited_s = latency(answer)
            if waited_s is None:
                continue
            met = _met(answer, faults, waited_s)
            if not met:
                alone.append(waited_s)
            elif met[0] in floods and len(met) == 1 and answer.sent_s >= met[0].at_clock_s:
                beside.append(waited_s)
        alone_p99_s, beside_p99_s = quantile(sorted(alone), 0.99), quantile(sorted(beside), 0.99)
        limit_s = None if alone_p99_s is None else most_beside_flood(alone_p99_s, step_s)
        found.append(BesideFlood(name, len(alone), len(beside), alone_p99_s, beside_p99_s, limit_s))
    return tuple(found)


def _first_token_s(answer: StreamedAnswer) -> float | None:
    firsts = [choice.arrivals[0][0] for choice in answer.choices if choice.arrivals]
    return min(firsts) - answer.sent_s if firsts and answer.ask.streamed else None


def _short_answer_s(answer: StreamedAnswer) -> float | None:
    whole = answer.outcome == "finished" and answer.ask.form == "short"
    return answer.ended_s - answer.sent_s if whole else None


_LATENCIES: dict[str, Callable[[StreamedAnswer], float | None]] = {
    "first token": _first_token_s,
    "short answer": _short_answer_s,
}


def _met(answer: StreamedAnswer, faults: Sequence[Event], waited_s: float | None = None) -> list[Event]:
    """Faults that overlapped a response, or the first `waited_s` of it."""
    end_s = answer.ended_s if waited_s is None else answer.sent_s + waited_s
    return [fault for fault in faults if fault.at_clock_s <= end_s and answer.sent_s <= _over_s(fault)]


def _over_s(fault: Event) -> float:
    return fault.at_clock_s + max(fault.lasts_s, fault.replaced_s or 0.0) + AFTER_S


def _gaps(answer: StreamedAnswer) -> list[float]:
    """Times between two pieces of each choice [s]."""
    return [b - a for choice in answer.choices for (a, _), (b, _) in itertools.pairwise(choice.arrivals)]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all do not exceed; None without values."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


# Findings of a run, computed from its recorded results. Pure.

PAUSE_S = 0.5
RESUMED_GAP_S = 0.06
"""Three steps of 20 ms: a shorter gap cannot be distinguished from a step."""
FELT_S = 0.5
"""Tokens in transfer at the time of the fault still arrive within this time."""
ORPHANED_S = 5.0
"""Gateways of a killed node end within this time, when another one may already exist."""
_SAID = ("no end after", "ProtocolError: in the stream", "ProtocolError: HTTP 4")
"""Starts of reasons that are no broken connection."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Times from a fault to the next token of each stream that it stopped [s]; None if there was none."""

    count: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Pauses":
        """Summary of some pauses."""
        ordered = sorted(values)
        return cls(len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1] if ordered else None)


@dataclass(frozen=True, slots=True)
class KindFindings:
    """Effect of the faults of one kind at one pool."""

    kind: FaultKind
    pool: str
    events: int
    skipped: int
    replaced: int
    survived: int
    not_replaced: int
    replacement: Pauses
    resumed: Pauses


@dataclass(frozen=True, slots=True)
class ChaosFindings:
    """The verdict and its numbers."""

    sent: int
    finished: int
    failed: int
    cancelled: int
    cut: int
    """Requests that ended with a killed gateway, or arrived before it was back: expected failures."""
    reasons: dict[str, int]
    compared: int
    exact: int
    streams: int
    resumptions: int
    tokens: int
    resumed: Pauses
    kinds: tuple[KindFindings, ...]
    not_replaced: int
    leaks: tuple[str, ...]
    downs: int
    """How often the system was not ready."""
    longest_down_s: float
    """The longest downtime [s]; 0 if there was none."""
    down_too_long: bool
    hits: int
    """Faults that affected a unit."""
    beside_floods: tuple[BesideFlood, ...] = ()
    """Latencies of the load during another tenant's flood; empty if there was none."""

    @property
    def clean(self) -> bool:
        """Whether no request was lost or different, no resource leaked or missing, and the system was never down or
        delayed for too long, although faults were injected.
        """
        wrong = self.failed or self.exact < self.compared or self.leaks or self.not_replaced or self.down_too_long
        return not wrong and not self.unfair and self.finished > 0 and self.hits > 0

    @property
    def unfair(self) -> bool:
        """Whether a flood delayed the load for too long, or no measurement shows that it did not."""
        return not all(one.fair for one in self.beside_floods)


def find(run: ChaosRun) -> ChaosFindings:
    """Compute all findings for the reports."""
    outcomes = Counter(answer.outcome for answer in run.answers)
    lost = [answer for answer in run.answers if answer.outcome in ("failed", "open")]
    cut = sum(cut_with_gateway(answer, run) for answer in lost)
    longest_down_s = max((down.ended_s - down.begun_s for down in run.downs), default=0.0)
    compared = [i for i, answer in enumerate(run.answers) if answer.outcome in ("finished", "cancelled")]
    pauses = {event.number: pauses_of(event, run.answers) for event in run.events if stops_streams(event)}
    return ChaosFindings(
        sent=len(run.answers),
        finished=outcomes["finished"],
        failed=len(lost) - cut,
        cut=cut,
        cancelled=outcomes["cancelled"],
        reasons=dict(Counter(a.reason or "still open" for a in lost if not cut_with_gateway(a, run))),
        compared=len(compared),
        exact=sum(index not in run.differences for index in compared),
        streams=sum(answer.ask.streamed for answer in run.answers),
        resumptions=sum(answer.resumptions for answer in run.answers),
        tokens=sum(len(choice.tokens) for answer in run.answers for choice in answer.choices),
        resumed=Pauses.of(pause for found in pauses.values() for pause in found),
        kinds=tuple(_by_kind(run.events, pauses)),
        not_replaced=sum(event.fate in ("under way", "not replaced") for event in run.events),
        leaks=tuple(run.leaks.all),
        downs=len(run.downs),
        longest_down_s=longest_down_s,
        down_too_long=longest_down_s > run.most_down_s,
        hits=sum(event.hit for event in run.events),
        beside_floods=beside_floods(run.events, run.answers),
    )


def stops_streams(event: Event) -> bool:
    """Whether a fault removed an instance, at least for a while."""
    return event.kind in GRAVE and event.pool in ENGINE_POOLS and event.fate != "gone before"


def cut_with_gateway(answer: StreamedAnswer, run: ChaosRun) -> bool:
    """Whether a request lost its connection to a killed gateway, or arrived before one was back.

    An error response of a gateway is no such loss, nor is a missing response.
    """
    return any(cut_by(event, answer, run.downs) for event in run.events)


def cut_by(event: Event, answer: StreamedAnswer, downs: Sequence[Down]) -> bool:
    """`cut_with_gateway` for one fault."""
    if not answer.reason or answer.reason.startswith(_SAID):
        return False
    if event.pool not in ("gateway", "node") or not event.hit or event.replaced_s is None:
        return False
    begun_s, back_s = event.at_clock_s, event.at_clock_s + event.replaced_s
    # A node is back before the gateways on it are: until then only the missing readiness shows it.
    latest_s = back_s + ORPHANED_S
    overlapping = (down.ended_s for down in downs if down.begun_s <= latest_s and down.ended_s >= begun_s)
    back_s = max([back_s, *overlapping])
    return answer.sent_s <= back_s + FELT_S and answer.ended_s >= begun_s


def pauses_of(event: Event, answers: Sequence[StreamedAnswer]) -> list[float]:
    """From a fault to the next token, for each choice that it stopped [s]."""
    fault_s = event.at_clock_s
    found: list[float] = []
    for answer in answers:
        if not answer.ask.streamed or answer.sent_s > fault_s or answer.ended_s < fault_s:
            continue
        ends = (end_of_gap(choice, fault_s, least_gap_s(answer)) for choice in answer.choices)
        found += [end - fault_s for end in ends if end is not None]
    return found


def least_gap_s(answer: StreamedAnswer) -> float:
    """Shortest gap that counts as a stop of this answer [s]."""
    return RESUMED_GAP_S if answer.resumptions else PAUSE_S


def end_of_gap(choice: ChoiceSoFar, fault_s: float, least_s: float) -> float | None:
    """The token that ended a fault's gap; None if it caused no gap longer than `least_s`."""
    last = fault_s
    for at_s, _ in choice.arrivals:
        if at_s <= fault_s:
            continue
        if at_s - last > least_s:
            return at_s
        if at_s > fault_s + FELT_S:
            return None
        last = at_s
    return None


def _by_kind(events: Sequence[Event], pauses: dict[int, list[float]]) -> Iterable[KindFindings]:
    for kind, pool in sorted({(event.kind, event.pool) for event in events}):
        mine = [event for event in events if (event.kind, event.pool) == (kind, pool)]
        fates = Counter(event.fate for event in mine)
        yield KindFindings(
            kind,
            pool,
            events=len(mine),
            skipped=fates["nobody to hit"] + fates["gone before"],
            replaced=fates["replaced"],
            survived=fates["survived"],
            not_replaced=fates["under way"] + fates["not replaced"],
            replacement=Pauses.of(event.replaced_s for event in mine if event.replaced_s is not None),
            resumed=Pauses.of(pause for event in mine for pause in pauses.get(event.number, ())),
        )
