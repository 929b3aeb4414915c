"""The loop runs steps prepared during the previous ones, as long as there is no other work."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from serving.errors import EngineError
from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole
from serving.values.news import Lost, Tokens
from serving.values.orders import Cancel, Release
from serving.values.step_plan import UNKNOWN, StepPlan, StepResult
from tests.fakes.executor import reference_output
from tests.fakes.transport import FakeFabric
from tests.live.rig import NOBODY, PATIENCE_S, Rig, spec, wait_for


class Preparing:
    """Counts the prepared steps, and stops steps where a test needs to inspect."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.prepared: list[int] = []
        self.plans: list[StepPlan] = []
        self.hold_at: Callable[[int], bool] = lambda step: False
        self.lasting_s = 0.0
        self.held, self.go_on = threading.Event(), threading.Event()
        self._inner = rig.executor.prepare
        self.inner = rig.executor.execute
        rig.executor.prepare = self.prepare  # type: ignore[method-assign]
        rig.executor.execute = self.execute  # type: ignore[method-assign]

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult]:
        assert all(tuple(step.tokens) == (UNKNOWN,) for step in plan.sequences)
        self.prepared.append(plan.step)
        return self._inner(plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self.hold_at(plan.step):
            self.held.set()
            assert self.go_on.wait(PATIENCE_S)
        time.sleep(self.lasting_s)
        return self.inner(plan)

    def hold(self, when: Callable[[int], bool]) -> None:
        """Stop in the next step; a step in which the loop is blocked now continues."""
        before, self.go_on = self.go_on, threading.Event()
        self.held.clear()
        self.hold_at = when
        before.set()

    def release(self) -> None:
        """Continue."""
        self.hold_at = lambda step: False
        self.go_on.set()


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig(EngineRole.AGGREGATED, FakeFabric(), "one")
    yield one
    one.loop.stop()
    one.assert_ended()


@pytest.fixture
def steps(rig: Rig) -> Preparing:
    """Starts the loop, too."""
    watched = Preparing(rig)
    rig.loop.start()
    return watched


def output(rig: Rig, name: str) -> tuple[int, ...]:
    mine = [item for item in rig.news if isinstance(item, Tokens) and item.sequence_id == name]
    return tuple(token for event in mine for token in event.tokens)


def running_ahead(rig: Rig, steps: Preparing, *names: str) -> None:
    """Sequences decode, the loop is blocked in a step, and the next step is prepared."""
    steps.hold(lambda step: step >= len(names) + 3)
    for name in names:
        rig.add(spec(name, max_tokens=40))
    assert steps.held.wait(PATIENCE_S)
    wait_for(lambda: rig.ahead is not None, "the next step is prepared")


def test_steps_follow_each_other(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    (plan, _) = rig.ahead or (None, None)
    assert plan is not None
    assert plan.step == steps.plans[-1].step + 1
    steps.lasting_s = 0.005
    steps.release()
    rig.quiet()
    assert output(rig, "a") == reference_output(spec("a", max_tokens=40))[0]
    assert sum(tokens for tokens, _ in rig.steps) == 10 + 39
    assert len(steps.prepared) >= 20, "mostly; one that is ready too late is planned as ever"
    assert rig.loop.progress_age_s() == 0.0


def test_what_comes_in_takes_part_in_the_very_next_step(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    number = steps.plans[-1].step
    rig.add(spec("new"))
    wait_for(lambda: rig.ahead is None, "the prepared step is forgotten")
    steps.release()
    rig.quiet()
    behind = next(plan for plan in steps.plans if plan.step == number + 1)
    assert [step.sequence_id for step in behind.sequences] == ["a", "new"]
    for name, length in (("a", 40), ("new", 6)):
        assert output(rig, name) == reference_output(spec(name, max_tokens=length))[0]


def test_what_concerns_nobody_in_the_batch_leaves_the_prepared_step_alone(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    ahead = rig.ahead
    over = Release("a handoff that is over")
    rig.loop.post(over)
    wait_for(lambda: over in rig.told, "the engine is told during the step")
    assert rig.ahead is ahead
    rig.loop.post(NOBODY)
    wait_for(lambda: NOBODY in rig.told and rig.ahead is not None, "the step is prepared anew")
    assert rig.ahead is not ahead
    steps.release()
    rig.quiet()
    assert output(rig, "a") == reference_output(spec("a", max_tokens=40))[0]


def test_news_of_a_step_goes_out_while_the_next_one_runs(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    number = steps.plans[-1].step
    steps.hold(lambda step: step == number + 1)
    assert steps.held.wait(PATIENCE_S)
    wait_for(lambda: len(output(rig, "a")) == number + 1, "the token of the step that has ended")
    assert steps.plans[-1].step == number + 1, "the next one still runs"
    steps.release()
    rig.quiet()


def test_a_cancel_meanwhile_leaves_the_others_alone(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a", "b")
    rig.loop.post(Cancel(SequenceId("a")))
    steps.release()
    rig.quiet()
    assert output(rig, "b") == reference_output(spec("b", max_tokens=40))[0]


def test_a_following_step_that_fails(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    number = steps.plans[-1].step
    execute = steps.inner

    def failing(plan: StepPlan) -> StepResult:
        if plan.step == number + 1:
            raise EngineError("device lost")
        return execute(plan)

    steps.inner = failing
    steps.release()
    assert rig.wait(Lost).sequence_id == "a"
    reference = reference_output(spec("a", max_tokens=40))[0]
    told = output(rig, "a")
    assert told == reference[: len(told)]
    assert len(told) == number + 1, "the step before it counts"
    rig.add(spec("b"))
    wait_for(lambda: len(output(rig, "b")) == 6, "the engine goes on")
    rig.quiet()


def test_the_loop_ends_behind_the_step_that_runs(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    number = steps.plans[-1].step
    rig.loop._stopping = True
    steps.release()
    rig.loop.stop()
    assert steps.plans[-1].step == number


def test_a_bug_in_an_order_ends_the_chain(rig: Rig, steps: Preparing) -> None:
    running_ahead(rig, steps, "a")
    number = steps.plans[-1].step
    rig.at[NOBODY] = lambda: 1 // 0
    rig.loop.post(NOBODY)
    wait_for(lambda: rig.loop.progress_age_s() == float("inf"), "unhealthy")
    steps.release()
    rig.assert_ended()
    assert steps.plans[-1].step == number
