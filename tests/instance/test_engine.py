"""One engine, call by call: its refusals, its events, and the release of blocks."""

import pytest
from msgspec.structs import replace

from serving.errors import (
    EngineError,
    LedgerError,
)
from serving.ids import SequenceId
from serving.instance.core.events import HandoffReady
from serving.instance.core.settings import EngineRole
from serving.values.news import FailKind, Lost, Refused, Tokens
from serving.values.sequence import FinishReason, TokenLogprobs
from serving.values.step_plan import SequenceResult, StepResult
from tests.fakes.executor import reference_output, reference_prompt_logprobs
from tests.instance.bench import PROMPT, Bench, spec, ticket_for

# ---- the door --------------------------------------------------------------------------------------------------------


def test_a_sequence_that_can_never_run_is_refused() -> None:
    engine = Bench(blocks=4).engine
    assert engine.max_len == 16
    too_long = "tokens are given and at most 16 fit this instance; shorten the prompt"
    for never, why in (
        (spec("a", ()), "the prompt must hold at least one token"),
        (spec("a", output=(1,) * 5), "5 output tokens given and max_tokens is 5: nothing remains to do"),
        (spec("a", (1,) * 16), f"16 {too_long}"),
        (spec("a", (1,) * 17, max_tokens=0), f"17 {too_long}"),
    ):
        assert engine.add(never, 0.0) == Refused(SequenceId("a"), FailKind.INVALID, why)
    assert engine.add(spec("prompt only", (1,) * 16, max_tokens=0), 0.0) is None


def test_a_full_queue_refuses_with_a_time() -> None:
    bench = Bench()
    for index in range(3):
        bench.engine.add(spec(f"s{index}"), 0.0)
    more, why = SequenceId("more"), "3 sequences are already queued"
    refused = bench.engine.add(spec("more"), 0.0)
    assert refused == Refused(more, FailKind.OVERLOADED, why, 1.0), "nothing was measured yet"
    bench.step()  # admits two of the three
    for index in range(2):
        bench.engine.add(spec(f"t{index}"), 0.0)
    refused = bench.engine.adopt(spec("more", output=(1,)), ticket_for(spec("more", output=(1,))), 0.0)
    assert isinstance(refused, Refused)
    assert 0 < refused.retry_after_s < 1.0


def test_a_short_prompt_passes_a_long_one_that_came_shortly_before() -> None:
    bench = Bench(max_sequences=1, prompt_delay_s=100.0)  # 0.1 s a token
    bench.engine.add(spec("first", (1,), max_tokens=2), 0.0)
    bench.step()
    bench.engine.add(spec("long", (1,) * 20, max_tokens=1), 0.0)
    bench.engine.add(spec("short", (1,), max_tokens=1), 1.8)
    bench.engine.add(spec("late", (1,), max_tokens=1), 2.0)
    ended: list[str] = []
    while not bench.engine.idle():
        ended += [e.sequence_id for e in bench.step() if isinstance(e, Tokens) and e.finish_reason]
    assert ended == ["first", "short", "long", "late"]


def test_draining_refuses_the_new_and_finishes_the_old() -> None:
    bench = Bench()
    bench.engine.add(spec("a", max_tokens=2), 0.0)
    bench.engine.drain()
    refused = Refused(SequenceId("b"), FailKind.DRAINING, "this instance is draining; send the request to another one")
    assert bench.engine.add(spec("b"), 0.0) == refused
    assert bench.engine.snapshot(0.0).draining
    bench.step()
    bench.step()
    assert bench.engine.idle()


def test_the_same_id_twice_is_our_bug() -> None:
    engine = Bench().engine
    engine.add(spec("a"), 0.0)
    assert engine.add(spec("a"), 0.0) == Refused(SequenceId("a"), FailKind.ENGINE, "sequence a is already here")


def assert_lost(news: Refused | Lost | None, why: str) -> None:
    assert isinstance(news, Lost)
    assert why in news.reason


def test_a_handoff_that_does_not_fit_is_refused() -> None:
    resumed = spec("a", output=(1,))
    assert_lost(Bench(EngineRole.PREFILL).engine.adopt(resumed, ticket_for(resumed), 0.0), "accepts no handoffs")
    engine = Bench(EngineRole.DECODE).engine
    assert_lost(engine.adopt(spec("a"), ticket_for(resumed), 0.0), "does not fit 10 known")
    assert_lost(engine.adopt(resumed, ticket_for(resumed, 11), 0.0), "does not fit 11 known")
    short = replace(ticket_for(resumed), blocks=ticket_for(resumed).blocks[:2])
    assert_lost(engine.adopt(resumed, short, 0.0), "2 blocks for 10 tokens")
    assert engine.idle()


# ---- the step protocol -----------------------------------------------------------------------------------------------


def test_one_step_at_a_time() -> None:
    bench = Bench()
    empty = StepResult(0, (), 0.1)
    with pytest.raises(LedgerError, match="none was in flight"):
        bench.engine.step_finished(empty, 0.0)
    with pytest.raises(LedgerError, match="none was in flight"):
        bench.engine.step_failed(EngineError("x"), 0.0)
    bench.engine.add(spec("a"), 0.0)
    bench.begin()
    with pytest.raises(LedgerError, match="in flight"):
        bench.engine.next_action(0.0)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (StepResult(7, (SequenceResult(SequenceId("a"), (1,)),), 0.1), "does not match"),
        (StepResult(0, (), 0.1), "does not match"),
        (StepResult(0, (SequenceResult(SequenceId("b"), (1,)),), 0.1), "result for b where a"),
        (StepResult(0, (SequenceResult(SequenceId("a")),), 0.1), "sampled nothing"),
    ],
)
def test_a_result_must_answer_the_plan(result: StepResult, message: str) -> None:
    bench = Bench()
    bench.engine.add(spec("a"), 0.0)
    bench.begin()
    with pytest.raises(LedgerError, match=message):
        bench.engine.step_finished(result, 0.0)


def test_tokens_come_step_by_step_with_positions() -> None:
    bench = Bench()
    one = spec("a", max_tokens=3, logprobs=0)
    bench.engine.add(one, 0.0)
    expected, _ = reference_output(one)
    events = [event for _ in range(3) for event in bench.step()]
    assert [e for e in events if not isinstance(e, Tokens)] == []
    tokens = [e for e in events if isinstance(e, Tokens)]
    assert [e.position for e in tokens] == [0, 1, 2]
    assert tuple(t for e in tokens for t in e.tokens) == expected
    assert [e.cached_tokens for e in tokens] == [0, None, None]
    assert [e.finish_reason for e in tokens] == [None, None, FinishReason.LENGTH]
    assert all(len(e.logprobs) == 1 for e in tokens)
    assert bench.engine.idle()
    assert bench.begin() is None


def test_a_failed_step_fails_its_sequences_only() -> None:
    bench = Bench(max_sequences=1)
    bench.engine.add(spec("a"), 0.0)
    bench.engine.add(spec("b", max_tokens=1), 0.0)
    bench.begin()
    bench.engine.step_failed(EngineError("device lost"), 0.0)
    assert bench.engine.take_events() == (Lost(SequenceId("a"), "EngineError: device lost"),)
    assert bench.used == 0
    assert bench.engine.snapshot(0.0).kv_blocks_cached == 0  # no block of a failed step is reused
    (event,) = bench.step()
    assert isinstance(event, Tokens)
    assert (event.sequence_id, event.cached_tokens) == ("b", 0)


def test_a_prompt_only_sequence_ends_without_a_token() -> None:
    bench = Bench()
    bench.engine.add(spec("a", (1,) * 20, max_tokens=0, prompt_logprobs=1), 0.0)
    assert bench.step() == ()
    (event,) = bench.step()
    assert isinstance(event, Tokens)
    assert (event.tokens, event.finish_reason, len(event.prompt_logprobs)) == ((), FinishReason.LENGTH, 19)


def test_a_resumed_sequence_reports_logprobs_of_its_prompt_only() -> None:
    bench = Bench()
    bench.engine.add(spec("a", output=(50, 51, 52), prompt_logprobs=0), 0.0)
    assert bench.step() == (), "its prompt"
    (event,) = bench.step()
    assert isinstance(event, Tokens)
    assert event.prompt_logprobs == reference_prompt_logprobs(PROMPT)


def test_a_speculative_result_is_cut_at_the_end() -> None:
    bench = Bench()
    bench.engine.add(spec("a", max_tokens=2, logprobs=0), 0.0)
    plan = bench.begin()
    assert plan is not None
    logprobs = tuple(TokenLogprobs(token, -1.0) for token in (1, 2, 3))
    bench.engine.step_finished(StepResult(0, (SequenceResult(SequenceId("a"), (1, 2, 3), logprobs),), 0.1), 0.0)
    (event,) = bench.engine.take_events()
    assert isinstance(event, Tokens)
    assert (event.tokens, event.logprobs, event.finish_reason) == ((1, 2), logprobs[:2], FinishReason.LENGTH)


def test_cancel_while_waiting_running_and_unknown() -> None:
    bench = Bench(max_sequences=1)
    bench.engine.add(spec("a"), 0.0)
    bench.engine.add(spec("b"), 0.0)
    bench.step()
    bench.engine.cancel(SequenceId("b"), 0.0)
    bench.engine.cancel(SequenceId("nobody"), 0.0)
    bench.engine.check()
    assert bench.used > 0
    bench.engine.cancel(SequenceId("a"), 0.0)
    assert bench.engine.idle()
    assert bench.used == 0
    assert bench.engine.take_events() == ()


# ---- cancel, deadline, lease -----------------------------------------------------------------------------------------


def test_a_deadline_ends_waiting_and_running_sequences() -> None:
    bench = Bench(max_sequences=1)
    bench.engine.add(replace(spec("a", max_tokens=50), time_left_s=2.0), 0.0)
    bench.engine.add(replace(spec("b"), time_left_s=1.0), 0.0)
    bench.step()
    bench.now = 1.0
    assert Tokens(SequenceId("b"), 0, finish_reason=FinishReason.DEADLINE) in bench.step()
    bench.now = 2.0
    (event,) = bench.step()
    assert event == Tokens(SequenceId("a"), 2, finish_reason=FinishReason.DEADLINE)
    assert bench.engine.idle()


def test_wake_at_is_the_next_deadline_or_lease() -> None:
    bench = Bench(EngineRole.PREFILL)
    assert bench.engine.next_action(0.0).wake_at is None
    bench.engine.add(replace(spec("a"), time_left_s=30.0), 1.0)
    bench.now = 2.0
    bench.step()
    assert bench.engine.next_action(2.0).wake_at == 7.0
    bench.engine.cancel(SequenceId("a"), 3.0)
    assert bench.engine.next_action(3.0).wake_at is None


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_the_snapshot_counts() -> None:
    bench = Bench(max_sequences=2)
    for name in "abc":
        bench.engine.add(spec(name, max_tokens=3), 0.0)
    before = bench.engine.snapshot(0.5)
    assert (before.at_s, before.waiting, before.running, before.queued_tokens) == (0.5, 3, 0, 30)
    bench.step()
    during = bench.engine.snapshot(0.0)
    assert (during.waiting, during.running, during.queued_tokens) == (1, 2, 15)
    assert (during.kv_blocks_total, during.kv_blocks_used) == (32, 6)
    for _ in range(6):
        bench.step()
    after = bench.engine.snapshot(0.0)
    assert (after.waiting, after.running, after.queued_tokens, after.kv_blocks_used) == (0, 0, 0, 0)
    assert (after.prompt_tokens_total, after.generated_tokens_total) == (22, 9)
    assert (after.prefix_queries_tokens_total, after.prefix_hits_tokens_total) == (30, 8)
    assert after.steps_total == 6
    assert after.tokens_per_s > 0
    assert bench.engine.snapshot(bench.now + 60.0).tokens_per_s == 0, "what was long ago says nothing"


def test_progress_is_what_a_watchdog_needs() -> None:
    bench = Bench(EngineRole.PREFILL, blocks=4)
    assert not bench.engine.snapshot(100.0).has_work
    bench.engine.add(spec("a"), 100.0)
    fresh = bench.engine.snapshot(100.0)
    assert (fresh.has_work, fresh.last_progress_s) == (True, 100.0)  # not stuck since 0
    bench.engine.add(spec("b", (9,) * 10), 101.0)
    assert bench.engine.snapshot(101.0).last_progress_s == 100.0
    bench.now = 102.0
    (event,) = bench.step()
    assert isinstance(event, HandoffReady)
    bench.now = 104.0
    assert bench.begin() is None  # b waits for the blocks that a holds: not the engine's fault
    assert not bench.engine.snapshot(104.0).has_work
    bench.engine.release(event.ticket_id, 106.0)
    freed = bench.engine.snapshot(106.0)
    assert (freed.has_work, freed.last_progress_s) == (True, 106.0)


def test_after_its_first_report_a_sequence_may_reuse_its_own_prompt() -> None:
    bench = Bench(blocks=6, max_step_tokens=32)
    bench.engine.add(spec("a", (1, 2, 3, 4), max_tokens=9), 0.0)
    bench.engine.add(spec("b", tuple(range(12)), max_tokens=8, prompt_logprobs=0), 0.0)
    starts = []
    while not bench.engine.idle():
        plan = bench.begin()
        assert plan is not None
        starts += [s.start for s in plan.sequences if s.sequence_id == "b" and len(s.tokens) > 1]
        bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    assert bench.engine.snapshot(0.0).preemptions_total == 1
    assert starts[0] == 0
    assert starts[1] > 0


def test_the_first_news_say_how_long_a_prompt_waited() -> None:
    bench = Bench(max_sequences=1)
    bench.engine.add(spec("first", (1,), max_tokens=2), 0.0)
    bench.engine.add(spec("second", (2,), max_tokens=2), 1.0)
    told: list[tuple[str, float | None]] = []
    for now in (0.5, 2.0, 4.0, 5.0):
        bench.now = now
        told += [(event.sequence_id, event.waited_s) for event in bench.step() if isinstance(event, Tokens)]
    assert told == [("first", 0.5), ("first", None), ("second", 3.0), ("second", None)]


def test_a_handoff_says_how_long_its_prompt_waited() -> None:
    bench = Bench(EngineRole.PREFILL)
    bench.engine.add(spec("a"), 1.0)
    bench.now = 2.5
    (ready,) = [event for event in bench.step() if isinstance(event, HandoffReady)]
    assert ready.first.waited_s == 1.5
