"""Draft tokens inside an engine: their positions, their costs, and the independence of the output."""

import pytest
from msgspec import structs

from serving.ids import SequenceId
from serving.instance.core.events import EngineMessage, HandoffReady
from serving.instance.core.settings import EngineRole
from serving.values.news import Tokens
from serving.values.sequence import DraftUse
from serving.values.step_plan import SequenceStep
from tests.fakes.executor import fake_token, reference_output
from tests.instance.bench import PROMPT, Bench, spec, ticket_for


def bench(drafts: int = 3, percent: int = 100, role: EngineRole = EngineRole.AGGREGATED, **changes: object) -> Bench:
    made = Bench(role, **({"draft_tokens": drafts, "speculation": True} | changes))  # type: ignore[arg-type]
    made.executor.guess_percent = percent
    made.executor.whole_drafts = True
    made.executor.max_len = made.engine.max_len
    return made


def tokens_of(events: tuple[EngineMessage, ...]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Tokens) for token in event.tokens)


def share_of(one: Bench, name: str = "a") -> SequenceStep:
    plan = one.begin()
    assert plan is not None
    step = next(step for step in plan.sequences if step.sequence_id == name)
    one.engine.step_finished(one.executor.execute(plan), one.now)
    return step


def finish(one: Bench) -> tuple[EngineMessage, ...]:
    events: tuple[EngineMessage, ...] = ()
    for _ in range(200):
        events += one.step()
        if one.engine.idle():
            return events
    raise AssertionError("no end")


def test_right_guesses_come_out_at_once() -> None:
    one = bench()
    order = spec("a", max_tokens=9)
    one.engine.add(order, 0.0)
    expected, _ = reference_output(order)
    assert tokens_of(one.step()) == expected[:1]
    (event,) = one.step()
    assert isinstance(event, Tokens)
    assert event.tokens == expected[1:5]
    assert event.drafts == DraftUse(3, 3)
    assert tokens_of(finish(one)) == expected[5:]


def test_wrong_guesses_cost_nothing_but_time() -> None:
    one = bench(percent=0)
    order = spec("a", max_tokens=6)
    one.engine.add(order, 0.0)
    one.step()
    (event,) = one.step()
    assert isinstance(event, Tokens)
    assert (len(event.tokens), event.drafts) == (1, DraftUse(3, 0))
    assert tokens_of(finish(one)) == reference_output(order)[0][2:]


def test_every_chunk_of_a_prompt_keeps_the_draft_layer_up() -> None:
    one = bench(max_step_tokens=4)
    one.engine.add(spec("a", max_tokens=6), 0.0)
    chunks = [share_of(one) for _ in range(3)]
    assert [step.next_drafts for step in chunks] == [0, 0, 3]
    assert [step.next_prompt_token for step in chunks] == [PROMPT[4], PROMPT[8], None]
    assert [step.drafts for step in chunks] == [(), (), ()]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_no_guess_goes_past_the_last_token_asked_for(limit: int) -> None:
    one = bench()
    order = spec("a", max_tokens=limit)
    one.engine.add(order, 0.0)
    given = 0
    while not one.engine.idle():
        step = share_of(one)
        assert len(step.drafts) + 1 <= limit - given
        assert not step.next_drafts or step.next_drafts <= limit - given - 2
        given += len(tokens_of(one.engine.take_events()))
    assert given == limit
    counted = one.engine.snapshot(0.0)
    assert sum(counted.accepted_drafts_total) == counted.draft_tokens_total, "all were right, and none was in vain"


def test_a_stop_token_among_right_guesses_is_the_last() -> None:
    stop = reference_output(spec("a", max_tokens=9))[0][3]
    one = bench()
    order = spec("a", max_tokens=9, stop_token_ids=(stop,))
    one.engine.add(order, 0.0)
    events = finish(one)
    last = events[-1]
    assert isinstance(last, Tokens)
    assert tokens_of(events) == reference_output(order)[0]
    assert last.drafts == DraftUse(3, 3 if tokens_of(events).index(stop) == 3 else 2)
    assert one.used == 0


def test_sampling_that_needs_more_decodes_one_by_one() -> None:
    one = bench()
    one.executor.whole_drafts = False
    one.engine.add(spec("a", max_tokens=4, logprobs=1), 0.0)
    assert share_of(one).next_drafts == 0  # its prompt may be shared
    assert share_of(one).next_drafts is None
    assert one.engine.snapshot(0.0).draft_tokens_total == 0


def test_guessing_begins_when_stop_tokens_are_no_longer_hidden() -> None:
    one = bench()
    one.engine.add(spec("a", max_tokens=12, min_tokens=3, stop_token_ids=(63,)), 0.0)
    assert [share_of(one).next_drafts for _ in range(4)] == [0, 0, 0, 3]


def test_guesses_take_no_token_of_another_decode() -> None:
    one = bench(max_step_tokens=4, max_sequences=4, max_waiting=9)
    for index in range(4):
        one.engine.add(spec(f"s{index}", (index, 1, 2), max_tokens=60), 0.0)
    while len(one.engine.scheduler.running) < 4 or any(s.num_missing > 1 for s in one.engine.scheduler.running):
        one.step()
    for _ in range(10):
        plan = one.begin()
        assert plan is not None
        assert len(plan.sequences) == 4
        assert sum(len(step.drafts) for step in plan.sequences) == 0
        one.engine.step_finished(one.executor.execute(plan), one.now)


def test_nobody_is_preempted_for_guesses() -> None:
    """Two sequences fill the arena to the last block but one: they continue, with fewer draft tokens or none."""
    one = bench(blocks=8, max_model_len=32)
    one.executor.step_s = 1.0
    orders = [spec(f"s{index}", (index, *range(8)), max_tokens=7) for index in range(2)]
    for order in orders:
        one.engine.add(order, 0.0)
    events = finish(one)
    assert one.engine.snapshot(0.0).preemptions_total == 0
    for order in orders:
        told = tuple(e for e in events if e.sequence_id == order.sequence_id)
        assert tokens_of(told) == reference_output(order)[0]


def test_guesses_travel_with_a_handoff() -> None:
    source = bench(role=EngineRole.PREFILL)
    order = spec("a", max_tokens=9)
    source.engine.add(order, 0.0)
    (ready,) = source.step()
    assert isinstance(ready, HandoffReady)
    expected, _ = reference_output(order)
    assert ready.drafts == expected[1:4]

    target = bench(role=EngineRole.DECODE)
    target.executor.whole_drafts = False  # nothing was pulled: the arena is filled by hand
    resumed = structs.replace(order, output=ready.first.tokens)
    target.engine.adopt(resumed, structs.replace(ticket_for(resumed), drafts=ready.drafts), 0.0)
    (pull,) = target.engine.next_action(0.0).pulls
    for index, block in enumerate(pull.blocks):
        target.executor.arena[block][:] = [*PROMPT, *ready.first.tokens, -1][index * 4 : index * 4 + 4]
    target.engine.pull_finished(SequenceId("a"), None, 0, 0.0)
    target.engine.take_events()
    (event,) = target.step()
    assert isinstance(event, Tokens)
    assert event.tokens == expected[1:5]


@pytest.mark.parametrize(("known", "most", "kept"), [(1, 3, 3), (1, 2, 2), (2, 3, 0)])
def test_guesses_of_a_ticket_are_used_as_far_as_they_fit(known: int, most: int, kept: int) -> None:
    one = bench(drafts=most, role=EngineRole.DECODE)
    order = spec("a", output=tuple(range(known)), max_tokens=20)
    ticket = structs.replace(ticket_for(order, len(PROMPT)), drafts=(1, 2, 3))
    one.engine.adopt(order, ticket, 0.0)
    one.engine.next_action(0.0)
    one.engine.pull_finished(SequenceId("a"), None, 0, 0.0)
    assert len(one.engine.sequences[SequenceId("a")].drafts) == kept


def test_an_engine_without_speculation_ignores_guesses_of_a_ticket() -> None:
    one = Bench(EngineRole.DECODE)
    order = spec("a", output=(1,), max_tokens=20)
    one.engine.adopt(order, structs.replace(ticket_for(order), drafts=(1, 2, 3)), 0.0)
    one.engine.next_action(0.0)
    one.engine.pull_finished(SequenceId("a"), None, 0, 0.0)
    assert one.engine.sequences[SequenceId("a")].drafts == ()


def test_the_snapshot_counts_by_position() -> None:
    one = bench(percent=60)
    one.engine.add(spec("a", max_tokens=50), 0.0)
    events = finish(one)
    uses = [e.drafts for e in events if isinstance(e, Tokens) and e.drafts is not None]
    snapshot = one.engine.snapshot(0.0)
    assert snapshot.drafts_total == len(uses) > 5
    assert snapshot.draft_tokens_total == sum(use.drafted for use in uses)
    assert snapshot.accepted_drafts_total == tuple(sum(use.accepted > at for use in uses) for at in range(3))


def test_the_fake_guesses_what_it_draws() -> None:
    """The tests above would prove little if its draft tokens were of another kind."""
    one = bench(percent=100)
    order = spec("a", max_tokens=9)
    one.engine.add(order, 0.0)
    plan = one.begin()
    assert plan is not None
    result = one.executor.execute(plan).results[0]
    assert result.drafts[0] == fake_token([*PROMPT, *result.tokens], order.sampling, 1)
