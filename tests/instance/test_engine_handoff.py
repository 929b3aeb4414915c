"""One engine at either end of a handoff, call by call."""

import pytest
from msgspec.structs import replace

from serving.errors import (
    HandoffError,
    LedgerError,
)
from serving.ids import SequenceId
from serving.instance.core.events import HandoffClosed, HandoffEnd, HandoffReady
from serving.instance.core.settings import EngineRole
from serving.values.news import Adopted, Lost, Tokens
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import FinishReason, SequenceSpec
from tests.fakes.executor import reference_output
from tests.instance.bench import PROMPT, Bench, spec, ticket_for

# ---- handoff, source side --------------------------------------------------------------------------------------------


def held(bench: Bench) -> HandoffReady:
    bench.engine.add(spec("a"), bench.now)
    (event,) = bench.step()
    assert isinstance(event, HandoffReady)
    return event


def test_prefill_holds_its_blocks_for_the_handoff() -> None:
    bench = Bench(EngineRole.PREFILL)
    event = held(bench)
    assert event.first.tokens == reference_output(spec("a"))[0][:1]
    assert (event.first.position, event.computed_tokens, event.first.cached_tokens) == (0, 10, 0)
    assert event.hashes == prefix_hashes(PROMPT, 4)
    assert len(event.blocks) == 3
    assert bench.used == 3
    assert not bench.engine.idle()
    snapshot = bench.engine.snapshot(0.0)
    assert (snapshot.held, snapshot.running, snapshot.has_work) == (1, 0, False)


def test_a_deadline_and_a_lease_that_pass_together_end_a_handoff_once() -> None:
    """They killed the engine when its process had been stopped over both."""
    bench = Bench(EngineRole.PREFILL)
    bench.engine.add(replace(spec("a"), time_left_s=20.0), bench.now)
    bench.step()
    bench.engine.next_action(bench.now + 3600.0)
    lost, closed = bench.engine.take_events()
    assert lost == Lost(SequenceId("a"), "its handoff expired")
    assert isinstance(closed, HandoffClosed)
    assert closed.end is HandoffEnd.EXPIRED
    assert bench.used == 0


def test_release_frees_and_keeps_the_content() -> None:
    bench = Bench(EngineRole.PREFILL)
    event = held(bench)
    bench.engine.release("unknown", 0.0)
    assert bench.used == 3
    bench.engine.release(event.ticket_id, 0.0)
    bench.engine.release(event.ticket_id, 0.0)
    closed = HandoffClosed(SequenceId("a"), event.ticket_id, HandoffEnd.RELEASED)
    assert bench.engine.take_events() == (closed,)
    assert (bench.used, bench.engine.snapshot(0.0).kv_blocks_cached) == (0, 2)
    again = held(bench)
    assert again.first.cached_tokens == 8
    bench.engine.release(again.ticket_id, 0.0, distrust=True)
    bench.engine.check()
    bench.engine.take_events()
    assert (bench.used, bench.engine.snapshot(0.0).kv_blocks_cached) == (0, 0)
    assert held(bench).first.cached_tokens == 0, "distrusted blocks are computed again"
    assert again.ticket_id != event.ticket_id


def test_a_handoff_nobody_pulls_expires() -> None:
    bench = Bench(EngineRole.PREFILL)
    event = held(bench)
    bench.now = 4.9
    assert bench.step() == ()
    bench.now = 5.0
    assert bench.step() == (
        Lost(SequenceId("a"), "its handoff expired"),
        HandoffClosed(SequenceId("a"), event.ticket_id, HandoffEnd.EXPIRED),
    )
    assert bench.used == 0
    assert bench.engine.snapshot(5.0).handoffs_expired_total == 1


# ---- handoff, target side --------------------------------------------------------------------------------------------


def adopting(bench: Bench, name: str = "a") -> SequenceSpec:
    resumed = spec(name, output=reference_output(spec(name))[0][:1])
    bench.engine.adopt(resumed, ticket_for(resumed), bench.now)
    return resumed


def fill(bench: Bench, resumed: SequenceSpec, first: int, blocks: tuple[int, ...]) -> None:
    tokens = [*resumed.prompt, *resumed.output][:-1]
    for index, block in enumerate(blocks, start=first):
        piece = tokens[index * 4 : index * 4 + 4]
        bench.executor.arena[block][: len(piece)] = piece


def test_a_pulled_sequence_decodes_on() -> None:
    bench = Bench(EngineRole.DECODE)
    resumed = adopting(bench)
    action = bench.engine.next_action(0.0)
    (order,) = action.pulls
    assert action.plan is None
    assert (order.sequence_id, order.first_block, len(order.blocks)) == ("a", 0, 3)
    fill(bench, resumed, 0, order.blocks)
    bench.engine.pull_finished(SequenceId("a"), None, 40, 0.0)
    assert bench.engine.take_events() == (Adopted(SequenceId("a"), "t1"),)
    (event,) = bench.step()
    assert event == Tokens(SequenceId("a"), 1, reference_output(spec("a"))[0][1:2])
    snapshot = bench.engine.snapshot(0.0)
    assert (snapshot.handoffs_in_total, snapshot.handoff_bytes_in_total) == (1, 40)


def test_only_missing_blocks_are_pulled() -> None:
    bench = Bench(EngineRole.DECODE)
    first = adopting(bench, "a")
    (order,) = bench.engine.start_pulls(0.0)
    fill(bench, first, 0, order.blocks)
    bench.engine.pull_finished(SequenceId("a"), None, 40, 0.0)
    adopting(bench, "b")
    (second,) = bench.engine.start_pulls(0.0)
    assert (second.first_block, len(second.blocks)) == (2, 1)
    bench.engine.check()


def test_a_handoff_found_whole_in_the_cache_needs_no_pull() -> None:
    bench = Bench(EngineRole.DECODE)
    prompt = tuple(range(8))
    bench.engine.add(spec("a", prompt, max_tokens=1), 0.0)
    bench.step()
    resumed = spec("b", prompt, output=reference_output(spec("a", prompt))[0][:1])
    bench.engine.adopt(resumed, ticket_for(resumed), 0.0)
    plan = bench.begin()
    assert bench.engine.take_events() == (Adopted(SequenceId("b"), "t1"),)
    assert plan is not None
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    (event,) = bench.engine.take_events()
    assert isinstance(event, Tokens)
    assert event.tokens == reference_output(spec("a", prompt))[0][1:2]


def test_more_may_be_cached_than_the_ticket_holds() -> None:
    bench = Bench(EngineRole.DECODE)
    expected, _ = reference_output(spec("a", max_tokens=9))
    bench.engine.add(spec("a", output=expected[:8], max_tokens=9), 0.0)
    while not bench.engine.idle():
        bench.step()
    resumed = spec("b", output=expected[:8], max_tokens=9)
    bench.engine.adopt(resumed, ticket_for(resumed, 8), 0.0)  # 8 tokens held by the source, 16 found in this instance
    plan = bench.begin()
    assert plan is not None
    assert (plan.sequences[0].start, len(plan.sequences[0].tokens)) == (16, 2)
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    events = bench.engine.take_events()
    assert events[0] == Adopted(SequenceId("b"), "t1")
    assert isinstance(events[1], Tokens)
    assert events[1].tokens == expected[8:]


def test_no_room_holds_the_pull_back() -> None:
    bench = Bench(EngineRole.DECODE, blocks=5)
    adopting(bench, "a")
    resumed = spec("b", (50,) * 10, output=(1,))
    bench.engine.adopt(resumed, ticket_for(resumed), 0.0)
    assert [o.sequence_id for o in bench.engine.next_action(0.0).pulls] == ["a"]
    bench.engine.cancel(SequenceId("a"), 0.0)
    assert bench.engine.start_pulls(0.0) == ()  # the copy may still be writing
    bench.engine.check()
    bench.engine.pull_finished(SequenceId("a"), None, 0, 0.0)
    assert [o.sequence_id for o in bench.engine.start_pulls(0.0)] == ["b"]
    assert bench.engine.take_events() == ()


def test_a_deadline_during_a_pull_waits_for_the_pull() -> None:
    bench = Bench(EngineRole.DECODE)
    resumed = replace(spec("a", output=(1,)), time_left_s=1.0)
    bench.engine.adopt(resumed, ticket_for(resumed), 0.0)
    bench.begin()
    bench.now = 1.0
    assert bench.step() == (Tokens(SequenceId("a"), 1, finish_reason=FinishReason.DEADLINE),)
    assert bench.used == 3
    bench.engine.pull_finished(SequenceId("a"), HandoffError("late"), 0, 1.0)
    assert (bench.used, bench.engine.idle(), bench.engine.take_events()) == (0, True, ())


def test_a_pull_that_was_never_ordered_is_our_bug() -> None:
    bench = Bench(EngineRole.DECODE)
    with pytest.raises(LedgerError, match="unknown sequence"):
        bench.engine.pull_finished(SequenceId("a"), None, 0, 0.0)
    bench.engine.add(spec("a"), 0.0)
    for error in (None, HandoffError("x")):
        with pytest.raises(LedgerError, match="not being pulled"):
            bench.engine.pull_finished(SequenceId("a"), error, 0, 0.0)


def test_what_a_handoff_brings_is_not_waiting_to_be_computed() -> None:
    """A refused client got a Retry-After for prompts that were never going to be computed."""
    bench = Bench(EngineRole.DECODE, max_sequences=1)
    bench.engine.add(spec("decodes"), 0.0)
    bench.step()
    handed = spec("handed", output=(1, 2))
    bench.engine.adopt(handed, ticket_for(handed, 10), 0.0)
    assert bench.engine.snapshot(0.0).queued_tokens == 1 + 2
