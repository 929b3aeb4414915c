"""The thread around an engine: its deliveries, its waits, and its report when it is stuck."""

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from serving.errors import HandoffError
from serving.instance.core.events import EngineEvent, HandoffClosed
from serving.instance.core.settings import EngineRole
from serving.values.news import Adopted, Lost, Prefilled, Tokens
from serving.values.orders import Release
from serving.values.sequence import FinishReason, HandoffTicket
from tests.fakes.executor import reference_output
from tests.fakes.transport import FakeFabric
from tests.live.rig import NOBODY, PATIENCE_S, Rig, spec, wait_for


@pytest.fixture
def fabric() -> FakeFabric:
    return FakeFabric()


def started(role: EngineRole, fabric: FakeFabric, name: str) -> Iterator[Rig]:
    rig = Rig(role, fabric, name)
    rig.loop.start()
    yield rig
    rig.loop.stop()
    rig.assert_ended()


@pytest.fixture
def prefill(fabric: FakeFabric) -> Iterator[Rig]:
    yield from started(EngineRole.PREFILL, fabric, "prefill")


@pytest.fixture
def decode(fabric: FakeFabric) -> Iterator[Rig]:
    yield from started(EngineRole.DECODE, fabric, "decode")


def test_a_sequence_runs_to_its_end(decode: Rig) -> None:
    decode.add(spec())
    wait_for(lambda: any(isinstance(i, Tokens) and i.finish_reason for i in decode.news), "its end")
    events = [item for item in decode.news if isinstance(item, Tokens)]
    assert tuple(token for event in events for token in event.tokens) == reference_output(spec())[0]
    assert events[-1].finish_reason is FinishReason.LENGTH
    decode.quiet()
    assert sum(tokens for tokens, _ in decode.steps) == 10 + 5, "prompt, and all but the last token"
    assert decode.loop.busy_s == pytest.approx(sum(elapsed for _, elapsed in decode.steps))
    assert decode.loop.snapshot.generated_tokens_total == 6


def test_kv_moves_from_one_loop_to_another(prefill: Rig, decode: Rig) -> None:
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)
    assert ready.sequence_id == "s@1"
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    decode.wait(Adopted)
    prefill.loop.post(Release(ready.ticket.ticket_id))
    prefill.wait(HandoffClosed)
    wait_for(lambda: any(isinstance(i, Tokens) and i.finish_reason for i in decode.news), "its end")
    tokens = [t for item in decode.news if isinstance(item, Tokens) for t in item.tokens]
    assert (*ready.first.tokens, *tokens) == reference_output(spec())[0]
    prefill.quiet()
    decode.quiet()
    assert decode.loop.snapshot.handoff_seconds_total > 0
    assert decode.loop.snapshot.handoff_failures_total == 0


def test_a_failed_pull_is_news_and_counted(prefill: Rig, decode: Rig) -> None:
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)
    decode.transport.fail_next = HandoffError("cable pulled")
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    failed: Lost = decode.wait(Lost)
    assert "cable pulled" in failed.reason
    decode.quiet()
    assert decode.engine.snapshot(0.0).handoff_failures_total == 1
    prefill.loop.post(Release(ready.ticket.ticket_id))
    prefill.quiet()


def test_a_pull_that_breaks_in_an_unforeseen_way_fails_only_its_sequence(prefill: Rig, decode: Rig) -> None:
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)

    def broken(*_: object) -> int:
        raise ValueError("a bug in the transport")

    decode.transport.pull = broken  # type: ignore[method-assign, assignment]
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    assert "a bug in the transport" in decode.wait(Lost).reason
    decode.quiet()
    prefill.loop.post(Release(ready.ticket.ticket_id))
    prefill.quiet()


def test_blocks_that_cannot_be_registered_fail_the_sequence(prefill: Rig) -> None:
    def broken(*_: object) -> HandoffTicket:
        raise OSError("no shared memory")

    prefill.transport.register = broken  # type: ignore[method-assign, assignment]
    prefill.add(spec())
    refusal: Lost = prefill.wait(Lost)
    assert "no shared memory" in refusal.reason
    prefill.quiet()


def test_a_deadline_passes_without_any_command(decode: Rig) -> None:
    blocked = threading.Event()
    execute = decode.executor.execute
    decode.executor.execute = lambda plan: (blocked.wait(0.05), execute(plan))[1]  # type: ignore[method-assign]
    decode.add(spec(prompt=4, max_tokens=100, time_left_s=0.2))
    wait_for(lambda: any(isinstance(i, Tokens) and i.finish_reason for i in decode.news), "its end")
    last = decode.news[-1]
    assert isinstance(last, Tokens)
    assert last.finish_reason is FinishReason.DEADLINE
    decode.quiet()


@pytest.mark.real_time
def test_a_step_that_hangs_in_native_code_ages(decode: Rig) -> None:
    execute = decode.executor.execute

    def hang(plan: Any) -> Any:
        ctypes.CDLL(None).usleep(600_000)  # the interpreter continues concurrently, and so do the links
        return execute(plan)

    decode.executor.execute = hang  # type: ignore[method-assign]
    decode.add(spec(max_tokens=1))
    wait_for(lambda: decode.loop.progress_age_s() > 0.4, "it ages")
    decode.quiet()


def test_a_turn_that_hangs_before_its_step_ages(decode: Rig) -> None:
    go_on = threading.Event()
    decode.quiet()
    decode.at[NOBODY] = lambda: go_on.wait(PATIENCE_S)
    decode.loop.post(NOBODY)
    wait_for(lambda: decode.loop.progress_age_s() > 0.5, "nothing is known of any work, and yet it ages")
    go_on.set()
    decode.quiet()


def test_a_hanging_pull_shows_and_ages_when_its_ticket_is_void(prefill: Rig, decode: Rig) -> None:
    go_on = threading.Event()
    pull = decode.transport.pull

    def hang(*order: Any) -> int:
        go_on.wait(PATIENCE_S)
        return pull(*order)

    decode.transport.pull = hang  # type: ignore[method-assign, assignment]
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    wait_for(lambda: decode.loop.moves.pull_age_s() > 0.2, "it shows")
    assert decode.loop.progress_age_s() == 0.0, "a slow path is no hanging engine"
    lease_s = decode.engine.settings.handoff_lease_s
    object.__setattr__(decode.engine.settings, "handoff_lease_s", 0.1)
    wait_for(lambda: decode.loop.progress_age_s() > 0.2, "it ages")
    object.__setattr__(decode.engine.settings, "handoff_lease_s", lease_s)
    go_on.set()
    decode.wait(Adopted)
    prefill.loop.post(Release(ready.ticket.ticket_id))
    prefill.quiet()
    decode.quiet()
    assert decode.loop.moves.pull_age_s() == 0.0


def test_a_hanging_pull_does_not_hold_up_the_end(prefill: Rig, decode: Rig) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(*order: Any) -> int:
        begun.set()
        go_on.wait(PATIENCE_S)
        return 0

    decode.transport.pull = hang  # type: ignore[method-assign, assignment]
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    assert begun.wait(PATIENCE_S)
    decode.loop.stop(0.5)
    assert not go_on.is_set()
    assert decode.loop.moves.pull_age_s() > 0.0, "it still hangs"
    go_on.set()


def test_a_bug_in_the_loop_shows_for_ever(decode: Rig, caplog: pytest.LogCaptureFixture) -> None:
    decode.at[NOBODY] = lambda: 1 // 0
    decode.loop.post(NOBODY)
    wait_for(lambda: decode.loop.progress_age_s() == float("inf"), "health fails")
    wait_for(lambda: "engine thread died" in caplog.text, "it is logged")
    decode.loop.stop()


@pytest.mark.real_time
def test_an_idle_loop_sleeps(decode: Rig) -> None:
    decode.add(spec())
    decode.quiet()
    decode.told.clear()
    time.sleep(0.5)
    assert len(decode.told) <= 2, "turns"


@pytest.mark.real_time
def test_events_are_told_in_order_and_wake_the_loop(decode: Rig) -> None:
    decode.quiet()
    begun = time.monotonic()
    posted = [Release(f"ticket {number}") for number in range(100)]
    for event in posted:
        decode.loop.post(event)

    def told() -> list[EngineEvent]:
        return [event for event in list(decode.told) if isinstance(event, Release)]

    wait_for(lambda: len(told()) == 100, "all were told")
    assert told() == posted
    assert time.monotonic() - begun < 0.9, "it did not wait for the end of an idle wait"
