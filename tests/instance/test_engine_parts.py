"""Settings, timers, tickets and the audit."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError, LedgerError
from serving.ids import BlockId, SequenceId
from serving.instance.core.handoffs import HeldHandoffs
from serving.instance.core.outcome import accepted_from, book_step, continued, tokens_event
from serving.instance.core.scheduler import StepBudget
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.instance.core.settings import EngineSettings
from serving.instance.core.timers import Timers
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.values.step_plan import SequenceResult, SequenceStep, StepResult
from tests.fakes.engine_calls import EngineCalls


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "both"}, "role must be one of prefill, decode, aggregated"),
        ({"block_tokens": 0}, "block_tokens must be at least 1"),
        ({"max_waiting": 0}, "max_waiting must be at least 1"),
        ({"watermark_blocks": -1}, "watermark_blocks"),
        ({"handoff_lease_s": 0.0}, "handoff_lease_s"),
        ({"prompt_delay_s": -0.1}, "prompt_delay_s must not be negative"),
        ({"max_step_tokens": 8, "max_sequences": 9}, "at least max_sequences"),
        ({"speculation": True}, "speculation needs draft_tokens"),
        ({"speculation": True, "draft_tokens": 1, "lookup_tokens": 1}, "from the draft layer or from lookup, not from"),
        ({"pool": True, "prefix_reuse": False}, "prefix_reuse"),
        ({"max_store_blocks": -1}, "max_store_blocks"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**changes)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30), st.lists(st.integers(0, 60)))
def test_timers_give_live_times_once_and_in_order(entries: list[tuple[int, bool]], moments: list[int]) -> None:
    live = {SequenceId(str(i)): float(at) for i, (at, alive) in enumerate(entries) if alive}
    timers = Timers(lambda name, at: live.get(name) == at)
    for i, (at, _) in enumerate(entries):
        timers.set(float(at), SequenceId(str(i)), len(live))
    for now in sorted(moments):
        due = sorted(name for name, at in live.items() if at <= now)
        assert sorted(timers.due(now)) == due
        for name in due:
            del live[name]
        assert timers.next_at() == min(live.values(), default=None)


def test_stale_timers_do_not_pile_up() -> None:
    live: set[SequenceId] = set()
    timers = Timers(lambda name, _at: name in live)
    for i in range(20_000):
        live = {SequenceId(str(i))}
        timers.set(600.0 + i, SequenceId(str(i)), 1)
    assert len(timers) <= 1100
    assert timers.next_at() == 600.0 + 19_999


def test_a_ticket_ends_once() -> None:
    handoffs = HeldHandoffs(lease_s=5.0)
    sequence = LiveSequence(SequenceSpec(SequenceId("a"), (1,), SamplingParams()), (0.0, 0), 0.0)
    assert handoffs.expiry(sequence) is None
    with pytest.raises(LedgerError, match="holds no ticket"):
        handoffs.end(sequence)
    ticket_id = handoffs.hold(sequence, 10.0)
    assert handoffs.expiry(sequence) == 15.0
    assert handoffs.find(ticket_id) is sequence
    assert handoffs.end(sequence) == ticket_id
    assert (handoffs.find(ticket_id), len(handoffs)) == (None, 0)
    with pytest.raises(LedgerError, match="holds no ticket"):
        handoffs.end(sequence)


def sequence_of(engine: EngineCalls) -> LiveSequence:
    return engine.sequences[SequenceId("a")]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda e: e.scheduler.running.items.clear(), "1 sequences are known, 0 places"),
        (lambda e: setattr(sequence_of(e), "phase", SequencePhase.PULLING), "pulling among the running"),
        (lambda e: setattr(sequence_of(e), "in_flight", True), "in-flight mark"),
        (lambda e: e.scheduler.blocks.free(sequence_of(e)), "has 0 blocks"),
        (lambda e: setattr(sequence_of(e), "num_computed", 99), "do not fit"),
        (lambda e: setattr(sequence_of(e), "output", [1]), "tokens do not match its prompt"),
        (lambda e: setattr(sequence_of(e), "num_computed", 2), "misses"),
        (lambda e: e.scheduler.blocks.pool.allocate(1), "reference counts"),
    ],
)
def test_the_audit_finds_what_is_wrong(break_it: Callable[[EngineCalls], object], message: str) -> None:
    engine = EngineCalls(EngineSettings(), 8)
    engine.add(SequenceSpec(SequenceId("a"), (1, 2, 3), SamplingParams()), 0.0)
    engine.next_action(0.0)
    engine.step_finished(StepResult(0, (SequenceResult(SequenceId("a"), (1,)),), 0.1), 0.1)
    engine.check()
    break_it(engine)
    with pytest.raises(LedgerError, match=message):
        engine.check()


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([(), (7,), (1,)]),
    st.sampled_from([0, 0, 1]),
)
def test_a_stream_that_goes_on_is_booked_as_any_other(
    prompt: int, before: int, count: int, stop: tuple[int, ...], preempted: int
) -> None:
    """`feed_next` and `continued` give what the general functions give; `continued` may leave the sequence to them."""
    twins = []
    for _ in range(2):
        sampling = SamplingParams(max_tokens=8, stop_token_ids=stop)
        one = LiveSequence(SequenceSpec(SequenceId("r"), (0,) * prompt, sampling, time_left_s=1.0), (0.0, 1), 0.0)
        one.append((0,) * before)
        one.phase, one.num_computed, one.first_reported = SequencePhase.DECODING, prompt + before - 1, before > 1
        one.preempted = preempted
        twins.append(one)
    short, general = twins
    planned, longer = StepBudget(9, running=1), StepBudget(9, running=1)
    planned.feed_next(short)
    longer.feed(general)
    assert (planned.steps, planned.tokens_left) == (longer.steps, longer.tokens_left)
    step = SequenceStep(SequenceId("r"), (0,), prompt + before - 1, (BlockId(0),), short.sample_order)
    outcome = SequenceResult(SequenceId("r"), tuple(range(1, count + 1)))
    tokens = continued(short, step, outcome, 16, 4)
    if tokens is None:
        assert count > 1 or before == 1 or preempted or stop == (1,)
        assert (short.num_computed, len(short.output)) == (general.num_computed, before)
        return
    book_step(general, step, outcome)
    accepted = accepted_from(general, step, outcome, 16)
    assert accepted is not None
    assert tokens == tokens_event(general, accepted, outcome)
    assert (short.num_computed, short.output) == (general.num_computed, general.output)
