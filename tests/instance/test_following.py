"""Steps planned before the tokens of the previous step are known: same tokens, balanced ledgers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from serving.errors import EngineError, LedgerError
from serving.ids import SequenceId
from serving.instance.core.events import EngineMessage
from serving.instance.core.settings import EngineRole
from serving.values.news import Tokens
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import FinishReason
from serving.values.step_plan import UNKNOWN, StepPlan, StepResult
from tests.fakes.engine_calls import Orders
from tests.fakes.executor import reference_output
from tests.instance.bench import Bench, spec

A, B = SequenceId("a"), SequenceId("b")


def decoding(bench: Bench, *names: str, **sampling: object) -> StepPlan:
    """Start decoding some sequences. Returns: the running step."""
    values: dict[str, Any] = {"max_tokens": 20} | sampling
    for name in names:
        bench.engine.add(spec(name, **values), 0.0)
    for _ in names:
        bench.step()
    plan = bench.begin()
    assert plan is not None
    assert [len(step.tokens) for step in plan.sequences] == [1] * len(names)
    return plan


def followed(bench: Bench, run: Callable[[], StepResult]) -> tuple[Orders, Callable[[], StepResult]]:
    """End the running step; the planned one starts. Returns: the engine's next action, and the new step."""
    ahead = bench.engine.foresee(bench.now)
    assert ahead is not None
    following = bench.executor.prepare(ahead)
    action = bench.engine.step_followed(run(), bench.now)
    assert action.plan is ahead
    bench.engine.check()
    return action, following


def output_of(name: str, events: tuple[EngineMessage, ...]) -> tuple[int, ...]:
    mine = [event for event in events if isinstance(event, Tokens) and event.sequence_id == name]
    return tuple(token for event in mine for token in event.tokens)


def test_a_whole_life_gives_the_same_tokens() -> None:
    bench = Bench(max_step_tokens=32)
    for name in "abc":
        bench.engine.add(spec(name, (*range(5, 12), ord(name) % 64), max_tokens=20), 0.0)
    run: Callable[[], StepResult] | None = None
    steps = ahead_steps = 0
    while not bench.engine.idle():
        if run is None:
            plan = bench.begin()
            assert plan is not None
            run = partial(bench.executor.execute, plan)
        steps += 1
        ahead = bench.engine.foresee(bench.now)
        if ahead is None:
            bench.engine.step_finished(run(), bench.now)
            run = None
        else:
            following = bench.executor.prepare(ahead)
            bench.engine.step_followed(run(), bench.now)
            run, ahead_steps = following, ahead_steps + 1
        bench.engine.check()
    events = bench.engine.take_events()
    for name in "abc":
        one = spec(name, (*range(5, 12), ord(name) % 64), max_tokens=20)
        assert output_of(name, events) == reference_output(one)[0]
    assert (steps, ahead_steps) == (20, 18), "all but the prompts' and the first behind it"
    assert bench.used == 0


def test_the_plan_says_where_the_token_goes() -> None:
    bench = Bench()
    decoding(bench, "a")
    ahead = bench.engine.foresee(0.0)
    assert ahead is not None
    (step,) = ahead.sequences
    assert (tuple(step.tokens), step.start, step.alone, ahead.step) == ((UNKNOWN,), 11, True, 2)
    assert len(step.block_table) * 4 >= 12


def test_a_forgotten_foresight_changes_nothing() -> None:
    bench = Bench()
    plan = decoding(bench, "a", "b")
    assert bench.engine.foresee(0.0) is not None
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    bench.engine.check()
    while not bench.engine.idle():
        bench.step()
    assert bench.used == 0
    with pytest.raises(LedgerError, match="that was not planned ahead"):
        bench.engine.step_followed(StepResult(0, (), 0.0), 0.0)


def test_what_was_foreseen_is_void_when_the_step_ended_otherwise() -> None:
    bench = Bench()
    decoding(bench, "a")
    assert bench.engine.foresee(0.0) is not None
    bench.engine.step_failed(EngineError("lost"), 0.0)
    bench.engine.add(spec("b"), 0.0)
    other = bench.begin()
    assert other is not None
    with pytest.raises(LedgerError, match="that was not planned ahead"):
        bench.engine.step_followed(bench.executor.execute(other), 0.0)


def test_one_that_ends_takes_part_once_more_and_is_told_nothing_of_it() -> None:
    reference = reference_output(spec("a", max_tokens=20))[0]
    stop = reference[1]
    assert stop != reference[0]
    bench = Bench()
    plan = decoding(bench, "a", stop_token_ids=(stop,))
    _, run = followed(bench, partial(bench.executor.execute, plan))
    events = bench.engine.take_events()
    assert output_of("a", events)[-1] == stop
    assert isinstance(events[-1], Tokens)
    assert events[-1].finish_reason is FinishReason.STOP
    assert bench.used > 0, "the step that runs may still write there"
    assert bench.engine.foresee(0.0) is None
    bench.engine.step_finished(run(), 0.0)
    bench.engine.check()
    assert bench.engine.take_events() == ()
    assert (bench.engine.idle(), bench.used) == (True, 0)


def test_full_blocks_are_stored_meanwhile() -> None:
    bench = Bench(pool=True, max_store_blocks=8)
    bench.engine.add(spec("a", tuple(range(10)), max_tokens=20), 0.0)
    action = bench.engine.next_action(0.0)
    if action.fetches:
        bench.engine.fetch_finished(A, FetchReport(0), 0.0)
    bench.step()
    stores = 0
    plan = bench.begin()
    assert plan is not None
    run: Callable[[], StepResult] = partial(bench.executor.execute, plan)
    for _ in range(8):
        action, run = followed(bench, run)
        stores += sum(len(order.blocks) for order in action.stores)
        for order in action.stores:
            bench.engine.store_finished(order.order_id, 0.0)
    assert stores == 2, "positions 8 to 11, 12 to 15"


def test_nothing_is_foreseen_where_something_else_may_come() -> None:
    bench = Bench()
    decoding(bench, "a")
    bench.engine.add(spec("new"), 0.0)
    assert bench.engine.foresee(0.0) is None, "a prompt waits, and there is room"

    bench = Bench(max_sequences=1)
    decoding(bench, "a")
    bench.engine.add(spec("new"), 0.0)
    assert bench.engine.foresee(0.0) is not None, "a prompt waits, and there is none"

    bench = Bench()
    bench.engine.add(spec("a"), 0.0)
    bench.begin()
    assert bench.engine.foresee(0.0) is None, "a prompt is computed"

    bench = Bench()
    decoding(bench, "a", max_tokens=3)
    assert bench.engine.foresee(0.0) is not None
    bench = Bench()
    decoding(bench, "a", max_tokens=2)
    assert bench.engine.foresee(0.0) is None, "the last token comes"

    bench = Bench(max_model_len=12)
    decoding(bench, "a")
    assert bench.engine.foresee(0.0) is None, "the last token comes"

    bench = Bench(role=EngineRole.DECODE)
    decoding(bench, "a")
    bench.engine.drain()
    assert bench.engine.foresee(0.0) is None, "streams are to go on elsewhere"

    bench = Bench(speculation=True, draft_tokens=1)
    bench.engine.add(spec("a", max_tokens=20), 0.0)
    bench.step()
    bench.begin()
    assert bench.engine.foresee(0.0) is None, "guesses"


def test_a_deadline_ends_the_foresight() -> None:
    bench = Bench()
    decoding(bench, "a")
    assert bench.engine.foresee(599.0) is not None
    assert bench.engine.foresee(600.0) is None


def test_blocks_are_taken_for_all_or_none() -> None:
    bench = Bench(blocks=6, max_step_tokens=32)
    bench.engine.add(spec("a", tuple(range(11)), max_tokens=20), 0.0)
    bench.engine.add(spec("b", tuple(range(20, 31)), max_tokens=20), 0.0)
    bench.step()
    plan = bench.begin()
    assert plan is not None
    assert [step.start for step in plan.sequences] == [11, 11]
    before = bench.used
    assert before == 6, "positions up to 11"
    assert bench.engine.foresee(0.0) is None, "two more blocks are needed, none is free"
    assert bench.used == before
