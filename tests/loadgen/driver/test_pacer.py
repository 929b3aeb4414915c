"""Waking at absolute moments, on both event loops, with the kernel's timer and without."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from loadgen.driver import timerfd
from loadgen.driver.pacer import Pacer
from loadgen.driver.timerfd import TimerFd

pytestmark = pytest.mark.real_time

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


@pytest.mark.parametrize("precise", [True, False])
def test_never_early_and_in_order_whatever_the_order_of_asking(run: Run, *, precise: bool) -> None:
    async def check() -> None:
        pacer, woken = Pacer(precise=precise), []
        begin = time.monotonic() + 0.005
        for late_ms in (7, 3, 5, 1, 3):
            pacer.call_at(begin + late_ms / 1e3, lambda ms=late_ms: woken.append((ms, time.monotonic() - begin)))  # type: ignore[misc]
        await pacer.sleep_until(begin + 0.02)
        pacer.close()
        assert [ms for ms, _ in woken] == [1, 3, 3, 5, 7]
        assert all(at >= ms / 1e3 for ms, at in woken)

    run(check())


def test_an_alarm_set_by_an_alarm_and_one_in_the_past(run: Run) -> None:
    async def check() -> None:
        pacer, woken = Pacer(), []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def first() -> None:
            woken.append("first")
            pacer.call_at(time.monotonic() - 1, lambda: woken.append("past"))
            pacer.call_at(time.monotonic() + 0.002, lambda: done.set_result(None))

        pacer.call_at(0.0, first)
        await asyncio.wait_for(done, 30)
        assert woken == ["first", "past"]
        assert pacer.next_s == float("inf")
        pacer.close()

    run(check())


def test_a_cancelled_sleeper_does_no_harm(run: Run) -> None:
    async def check() -> None:
        pacer = Pacer()
        when = time.monotonic() + 0.01
        sleeper = asyncio.ensure_future(pacer.sleep_until(when))
        await asyncio.sleep(0)
        assert pacer.next_s == when
        sleeper.cancel()
        await pacer.sleep_until(when + 0.005)
        assert sleeper.cancelled()
        pacer.close()

    run(check())


def test_closed_means_silent(run: Run) -> None:
    async def check() -> None:
        pacer, woken = Pacer(), []
        pacer.call_at(time.monotonic() + 0.002, lambda: woken.append(1))
        pacer.close()
        await asyncio.sleep(0.01)
        assert woken == []

    run(check())


def test_a_timer_that_cannot_be_set_says_so() -> None:
    timer = TimerFd.create()
    if timer is None:
        pytest.skip("no timerfd here")
    timer.close()
    with pytest.raises(OSError, match="timerfd_settime"):
        timer.set(time.monotonic())


def test_without_the_system_call_there_is_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerfd, "_SYMBOL", "no_such_function")
    assert TimerFd.create() is None
