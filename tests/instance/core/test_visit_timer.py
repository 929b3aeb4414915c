"""Durations of a visit, as measured by an observer of the engine."""

import dataclasses

from msgspec.structs import replace

from serving.ids import SequenceId
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.events import EngineEvent, NextStep, PullDone, Run, StepDone
from serving.instance.core.settings import EngineRole
from serving.instance.core.visit_timer import MOST_LEGS, VisitTimer
from serving.instance.live.engine_news import DurationReporter
from serving.values.expert_map import NO_SESSIONS, SessionTimes
from serving.values.news import Tokens
from serving.values.orders import Add, Adopt, Cancel
from serving.values.step_plan import SequenceResult, StepResult
from serving.values.visit_times import DECODE, HANDOFF, PREFILL, QUEUE, WAIT, StepTime, VisitTimes
from tests.instance.bench import SETTINGS, spec, ticket_for


class Watched:
    """An engine with an observer, and a clock that a test sets."""

    def __init__(self, role: EngineRole) -> None:
        self.engine = InstanceEngine(dataclasses.replace(SETTINGS, role=role), 64)
        self.timer = VisitTimer()
        self.now = 0.0
        self.told: list[VisitTimes] = []

    def on(self, event: EngineEvent, predicted_s: float = 0.0) -> list[object]:
        effects = self.engine.on(event, self.now)
        self.told += self.timer.watch(event, effects, self.now, predicted_s)
        return [*effects]

    def step(self, seconds: float, predicted_s: float = 0.0) -> None:
        (run,) = [effect for effect in self.on(NextStep()) if isinstance(effect, Run)]
        self.now += seconds
        results = tuple(SequenceResult(one.sequence_id, (9,) if one.sample else ()) for one in run.plan.sequences)
        self.on(StepDone(StepResult(run.plan.step, results, seconds)), predicted_s)


def test_a_prompt_in_chunks() -> None:
    watched = Watched(EngineRole.AGGREGATED)
    watched.on(Add(spec("a", tuple(range(20)))))
    watched.now = 1.0
    watched.step(0.5, 0.05)
    watched.now += 0.25
    watched.step(0.125, 0.01)
    (course,) = watched.told
    assert [(leg.kind, leg.seconds, leg.tokens, leg.predicted_s) for leg in course.legs] == [
        (QUEUE, 1.0, 0, 0.0), (PREFILL, 0.5, 16, 0.05), (WAIT, 0.25, 0, 0.0), (PREFILL, 0.125, 4, 0.01),
    ]  # fmt: skip
    watched.now += 1.0
    watched.step(0.5)
    assert len(watched.told) == 1, "a batch that decodes tells nothing more"
    assert watched.timer.open == 0


def test_a_handoff() -> None:
    watched = Watched(EngineRole.DECODE)
    one = replace(spec("a"), output=(7,))
    watched.on(Adopt(one, ticket_for(one)))
    watched.now = 0.5
    watched.on(NextStep())
    watched.now = 2.0
    watched.on(PullDone(SequenceId("a"), 4096, None, 1.5))
    watched.now = 2.25
    watched.step(0.5)
    (course,) = watched.told
    assert [(leg.kind, leg.seconds, leg.nbytes) for leg in course.legs] == [
        (QUEUE, 0.5, 0), (HANDOFF, 1.5, 4096), (WAIT, 0.25, 0), (DECODE, 0.5, 0),
    ]  # fmt: skip
    assert course.source == "p"


def test_who_is_cancelled_or_refused_is_forgotten() -> None:
    watched = Watched(EngineRole.AGGREGATED)
    watched.on(Add(spec("a")))
    watched.on(Cancel(SequenceId("a")))
    watched.on(Add(spec("b", ())))
    assert watched.timer.open == 0
    assert [course.sequence_id for course in watched.told] == ["b"]


def test_a_visit_has_a_bounded_number_of_legs() -> None:
    watched = Watched(EngineRole.AGGREGATED)
    watched.engine = InstanceEngine(dataclasses.replace(SETTINGS, max_model_len=4000), 2000)
    watched.on(Add(spec("a", tuple(range(3000)))))
    while not watched.told:
        watched.now += 1.0
        watched.step(0.5)
    (course,) = watched.told
    assert len(course.legs) <= MOST_LEGS + 4
    assert sum(leg.tokens for leg in course.legs) == 3000
    assert abs(sum(leg.seconds for leg in course.legs) - watched.now) < 1e-6


def test_sessions_of_a_step_are_those_since_the_last_report() -> None:
    totals = iter((SessionTimes(1.0, 2.0, 3.0, 4), SessionTimes(1.5, 2.5, 3.25, 6), SessionTimes(1.5, 2.5, 3.25, 6)))
    reporter = DurationReporter(lambda: 0.0, lambda: next(totals))
    done, effects = StepDone(StepResult(1, (), 0.5)), [Tokens(SequenceId("a"), 0, (1,))]
    told = [reporter.note(done, [*effects], 1.0, 0.5)[0] for _ in range(3)]
    found = [one.sessions for one in told if isinstance(one, StepTime)]
    assert found == [SessionTimes(1.0, 2.0, 3.0, 4), SessionTimes(0.5, 0.5, 0.25, 2), NO_SESSIONS]
    assert reporter.note(done, [], 1.0, 0.5) == [], "nothing to tell, and nothing read"
