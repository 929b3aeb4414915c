"""Draft tokens by lookup inside an engine: chosen when a step is planned, the same output in fewer steps."""

from typing import Any

from msgspec import structs

from serving.ids import SequenceId
from serving.values.news import Tokens
from serving.values.sequence import SequenceSpec
from tests.fakes.executor import reference_output
from tests.instance.bench import Bench, spec

A = SequenceId("a")


def bench(lookup: int = 8, **changes: Any) -> Bench:
    return Bench(blocks=96, lookup_tokens=lookup, **{"max_step_tokens": 64, "max_model_len": 300} | changes)


def repeating(most: int = 60, **sampling: Any) -> SequenceSpec:
    return spec("a", max_tokens=most, top_k=1, **sampling)


def run(one: Bench, order: SequenceSpec) -> tuple[tuple[int, ...], int]:
    """A sequence's output, and the steps that it took."""
    one.engine.add(order, 0.0)
    output: tuple[int, ...] = ()
    steps = 0
    while not one.engine.idle():
        output += tuple(token for event in one.step() if isinstance(event, Tokens) for token in event.tokens)
        steps += 1
    return output, steps


def test_a_repeating_output_takes_fewer_steps() -> None:
    one = bench()
    output, steps = run(one, repeating())
    assert output == reference_output(repeating())[0]
    counted = one.engine.snapshot(0.0)
    assert steps == 60 - sum(counted.accepted_drafts_total) < 30
    assert len(counted.accepted_drafts_total) == 8
    assert one.used == 0


def test_other_outputs_have_no_drafts() -> None:
    one = bench()
    order = spec("a", max_tokens=20, seed=1)
    assert run(one, order) == (reference_output(order)[0], 20)
    assert one.engine.snapshot(0.0).draft_tokens_total == 0


def test_a_step_is_planned_ahead_only_while_nothing_is_found() -> None:
    one = bench()
    one.engine.add(repeating(), 0.0)
    one.step()
    foreseen = []
    while not one.engine.idle():
        plan = one.begin()
        assert plan is not None
        drafted = bool(plan.sequences[0].drafts)
        foreseen.append((drafted, one.engine.foresee(0.0) is not None))
        one.engine.step_finished(one.executor.execute(plan), 0.0)
    first = foreseen.index((True, False))
    assert any(ahead for _, ahead in foreseen[:first])
    assert not any(ahead for _, ahead in foreseen[first:])


def test_tokens_that_a_grammar_forces_come_first() -> None:
    one = bench()
    one.engine.add(repeating(), 0.0)
    for _ in range(20):
        one.step()
    plan = one.begin()
    assert plan is not None
    assert plan.sequences[0].drafts
    result = one.executor.execute(plan)
    forced = structs.replace(result.results[0], drafts=(63, 62), forced=True)
    one.engine.step_finished(structs.replace(result, results=(forced,)), 0.0)
    following = one.begin()
    assert following is not None
    assert following.sequences[0].drafts == (63, 62)


def test_sampling_that_needs_whole_rows_has_no_index() -> None:
    one = bench()
    assert run(one, repeating(logprobs=0))[1] == 60
    one.engine.add(repeating(frequency_penalty=0.5), 0.0)
    one.step()
    one.step()
    assert one.engine.sequences[A].lookup is None


def test_hidden_stop_tokens_are_waited_for() -> None:
    one = bench()
    one.engine.add(repeating(min_tokens=40, stop_token_ids=(99,)), 0.0)
    for _ in range(40):
        one.step()
    assert one.engine.snapshot(0.0).draft_tokens_total == 0
    one.step()
    one.step()
    assert one.engine.snapshot(0.0).draft_tokens_total > 0


def test_a_long_prompt_is_indexed_in_slices() -> None:
    one = Bench(blocks=1400, lookup_tokens=4, max_step_tokens=6000, max_model_len=5600)
    one.engine.add(spec("a", tuple(range(50)) * 100, max_tokens=30, top_k=1), 0.0)
    known, drafted = [], []
    for _ in range(4):
        plan = one.begin()
        assert plan is not None
        drafted.append(bool(plan.sequences[0].drafts))
        one.engine.step_finished(one.executor.execute(plan), 0.0)
        lookup = one.engine.sequences[A].lookup
        assert lookup is not None
        known.append(lookup.known)
    assert known[:2] == [2048, 4096]
    assert known[2] > 5000
    assert drafted[:3] == [False] * 3


def test_drafts_that_cost_more_than_they_give_stop() -> None:
    one = bench(max_model_len=340)
    one.executor.step_s, one.executor.token_s = 0.0, 1.0
    output, steps = run(one, repeating(300))
    assert output == reference_output(repeating(300))[0]
    assert steps > 200
