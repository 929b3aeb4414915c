"""Measures the phases of each visit of a sequence by observing the engine's events and effects.

A passive observer of `InstanceEngine`, which behaves the same without it. A visit is forgotten after its first event to
a gateway, so a batch that only decodes costs one check per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.ids import SequenceId
from serving.instance.core.events import (
    EngineEffect,
    EngineEvent,
    FetchDone,
    FetchOrder,
    HandoffReady,
    PullDone,
    PullOrder,
    Run,
    StepDone,
    StepFailed,
    StepFollowed,
)
from serving.values.news import Lost, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel
from serving.values.visit_times import DECODE, HANDOFF, POOL_GET, PREFILL, QUEUE, WAIT, Leg, VisitTimes

MOST_LEGS = 64
"""Phases of one visit. Further ones are added to the last of their kind: a very long prompt has many chunks."""


@dataclass(slots=True)
class _Visit:
    """The current phase and its start time; `step`: kind of its steps."""

    since: float
    step: str
    source: str = ""
    waits: str = QUEUE
    fed: int | None = None
    """Tokens that the running step feeds; None = it is in no step."""
    legs: list[Leg] = field(default_factory=list)

    def close(self, kind: str, now: float, tokens: int = 0, nbytes: int = 0, predicted_s: float = 0.0) -> None:
        seconds, self.since = max(0.0, now - self.since), now
        leg = Leg(kind, seconds, tokens, nbytes, predicted_s)
        if len(self.legs) < MOST_LEGS:
            self.legs.append(leg)
            return
        for index in range(MOST_LEGS - 1, -1, -1):
            if (old := self.legs[index]).kind == kind:
                self.legs[index] = _sum(old, leg)
                return
        self.legs.append(leg)  # at most one more for each kind


def _sum(one: Leg, other: Leg) -> Leg:
    return Leg(
        one.kind,
        one.seconds + other.seconds,
        one.tokens + other.tokens,
        one.nbytes + other.nbytes,
        one.predicted_s + other.predicted_s,
    )


class VisitTimer:
    """The visits without a reported event so far; never more than the engine has sequences."""

    def __init__(self) -> None:
        self._open: dict[SequenceId, _Visit] = {}
        self._stepping: list[_Visit] = []

    @property
    def open(self) -> int:
        """Number of observed visits."""
        return len(self._open)

    def watch(
        self, event: EngineEvent, effects: Sequence[EngineEffect], now: float, predicted_s: float = 0.0
    ) -> list[VisitTimes]:
        """Observe an event of the engine and its effects.

        Args:
            predicted_s: predicted duration on real NPUs of the step that the event ends [s].
        Returns: durations of the visits whose first event is among the effects.
        Effects: forgets these.
        """
        match event:
            case Add(spec=spec):
                self._open[spec.sequence_id] = _Visit(now, PREFILL)
            case Adopt(spec=spec, ticket=ticket):
                self._open[spec.sequence_id] = _Visit(now, DECODE, ticket.source)
            case Cancel(sequence_id=sequence_id):
                self._open.pop(sequence_id, None)
            case StepDone() | StepFollowed() | StepFailed():
                for visit in self._stepping:
                    visit.close(visit.step, now, visit.fed or 0, predicted_s=predicted_s)
                    visit.waits, visit.fed = WAIT, None
                self._stepping = []
            case FetchDone(sequence_id=sequence_id, report=report) if sequence_id in self._open:
                self._open[sequence_id].close(POOL_GET, now, nbytes=report.nbytes)
                self._open[sequence_id].waits = WAIT
            case PullDone(sequence_id=sequence_id) if sequence_id in self._open:
                self._open[sequence_id].close(HANDOFF, now, nbytes=event.moved_bytes)
                self._open[sequence_id].waits = WAIT
        return self._look(effects, now) if self._open else []

    def _look(self, effects: Sequence[EngineEffect], now: float) -> list[VisitTimes]:
        ended: list[VisitTimes] = []
        for effect in effects:
            match effect:
                case Run(plan=plan):
                    for step in plan.sequences:
                        if (visit := self._open.get(step.sequence_id)) is not None:
                            visit.close(visit.waits, now)
                            visit.fed = len(step.tokens)
                            self._stepping.append(visit)
                case FetchOrder() | PullOrder():
                    if (visit := self._open.get(effect.sequence_id)) is not None:
                        visit.close(visit.waits, now)
                case Tokens() | HandoffReady() | Lost() | Refused():
                    if (visit := self._open.pop(effect.sequence_id, None)) is not None:
                        visit.close(visit.waits, now)
                        ended.append(VisitTimes(effect.sequence_id, _told(visit.legs), visit.source))
        return ended


def _told(legs: Sequence[Leg]) -> tuple[Leg, ...]:
    return tuple(leg for leg in legs if leg.seconds or leg.nbytes or leg.tokens)
