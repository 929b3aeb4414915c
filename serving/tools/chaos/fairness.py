"""Latency of a tenant's requests during another tenant's flood, compared with their latency alone. Pure.

"Alone" are the steady load's requests whose wait overlapped no fault; "beside" are those sent during a flood, unless
another fault overlapped their wait as well.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from serving.tools.chaos.answer import StreamedAnswer
from serving.tools.chaos.result import Event

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
