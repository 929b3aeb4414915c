"""Start times of jobs: the two loops on a stock of their own, with a real pacer and without sending."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
import uvloop

from loadgen.client.request import PreparedRequest
from loadgen.driver.loops import ClosedLoop, OpenLoop, first_depth
from loadgen.driver.pacer import Pacer, TimerFd
from loadgen.driver.session import Slots
from loadgen.driver.supply import RenderedTurn, Stock
from loadgen.errors import UsageError
from loadgen.plan import LoadJob
from tests.loadgen.driver.driving import scheduled, unscheduled


class Bench:
    """A stock that renders nothing, and a list of started jobs: index, intended, actual run time."""

    def __init__(self) -> None:
        self.pacer = Pacer()
        self.stock = Stock(lambda job: PreparedRequest(b"", 0, str(job.index)), self.pacer)
        self.rendering = asyncio.ensure_future(self.stock.render_all())
        self.t0 = time.monotonic()
        self.started: list[tuple[int, float, float]] = []

    def start(self, rendered: RenderedTurn, intended_s: float) -> None:
        assert rendered.request.request_id == str(rendered.job.index)
        self.started.append((rendered.job.index, intended_s, time.monotonic() - self.t0))

    async def fill(self, jobs: Iterable[LoadJob]) -> None:
        self.stock.add(list(jobs))
        await self.stock.rendered()

    async def close(self) -> None:
        self.rendering.cancel()
        self.pacer.close()
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_open_loop_starts_at_the_schedule_and_stops_at_the_duration() -> None:
    bench = Bench()
    loop = OpenLoop(bench.stock, bench.pacer, bench.start, bench.t0, 0.03)
    await bench.fill(scheduled([0.0, 0.01, 0.01, 0.02, 0.03, 0.04]))
    loop.begin()
    await asyncio.sleep(0.06)
    assert [(index, intended) for index, intended, _ in bench.started] == [(0, 0.0), (1, 0.01), (2, 0.01), (3, 0.02)]
    assert all(at >= intended for _, intended, at in bench.started)
    assert loop.starved_s == 0
    assert not loop.pending
    bench.stock.complete()
    assert bench.stock.complete_and_empty
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_open_loop_that_is_ended_starts_nothing_more() -> None:
    bench = Bench()
    loop = OpenLoop(bench.stock, bench.pacer, bench.start, bench.t0, None)
    await bench.fill(scheduled([0.0, 0.02]))
    loop.begin()
    assert loop.pending
    loop.end()
    await asyncio.sleep(0.04)
    assert [index for index, _, _ in bench.started] == [0]
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_jobs_that_come_too_late_leave_at_once_and_count_as_starving_once() -> None:
    bench = Bench()
    loop = OpenLoop(bench.stock, bench.pacer, bench.start, bench.t0, None)
    loop.begin()
    await asyncio.sleep(0.05)
    await bench.fill(scheduled([0.01, 0.02, 0.03]))
    assert [intended for _, intended, _ in bench.started] == [0.01, 0.02, 0.03]
    came_s = bench.started[0][2]
    assert loop.starved_s == pytest.approx(came_s - 0.01, abs=0.005)
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_closed_loop_gives_each_free_slot_the_next_job() -> None:
    bench = Bench()
    loop = ClosedLoop(bench.stock, bench.pacer, bench.start, bench.t0, [0.0, 0.0, 0.03], lambda: None)
    assert loop.depth == first_depth(3)
    await bench.fill(unscheduled(5))
    loop.begin()
    assert [(index, intended) for index, intended, _ in bench.started] == [(0, 0.0), (1, 0.0)]
    loop.freed(0.0)
    await asyncio.sleep(0.05)
    assert [intended for _, intended, _ in bench.started] == [0.0, 0.0, 0.0, 0.03]
    assert loop.taken == 4
    assert loop.starved_s == 0
    loop.end()
    loop.freed(0.05)
    assert loop.taken == 4
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_a_slot_that_finds_no_job_says_so_and_gets_the_next_one() -> None:
    hungry: list[int] = []
    bench = Bench()
    loop = ClosedLoop(bench.stock, bench.pacer, bench.start, bench.t0, [0.0], lambda: hungry.append(1))
    depth = loop.depth
    loop.begin()
    assert hungry == [1]
    assert loop.depth > depth
    await asyncio.sleep(0.02)
    await bench.fill(unscheduled(1))
    ((_, intended, at),) = bench.started
    assert 0.02 <= intended <= at
    assert loop.starved_s == pytest.approx(intended, abs=1e-9)
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_at_the_end_of_the_jobs_an_idle_slot_is_not_hungry() -> None:
    hungry: list[int] = []
    bench = Bench()
    bench.stock.complete()
    loop = ClosedLoop(bench.stock, bench.pacer, bench.start, bench.t0, [0.0], lambda: hungry.append(1))
    loop.begin()
    assert hungry == []
    await bench.close()


@pytest.mark.asyncio
@pytest.mark.real_time
async def test_rendering_lets_others_run_between_slices_and_passes_on_errors() -> None:
    def slow(job: LoadJob) -> PreparedRequest:
        if job.index == 9:
            raise UsageError("does not fit")
        time.sleep(0.001)  # a body that takes long to render
        return PreparedRequest(b"", 0, str(job.index))

    pacer = Pacer()
    stock = Stock(slow, pacer)
    rendering = asyncio.ensure_future(stock.render_all())
    stock.add(list(unscheduled(10)))
    turns = 0
    while not rendering.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 9
    with pytest.raises(UsageError, match="does not fit"):
        await rendering
    pacer.close()


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


@pytest.mark.real_time
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


@pytest.mark.real_time
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


@pytest.mark.real_time
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


@pytest.mark.real_time
def test_closed_means_silent(run: Run) -> None:
    async def check() -> None:
        pacer, woken = Pacer(), []
        pacer.call_at(time.monotonic() + 0.002, lambda: woken.append(1))
        pacer.close()
        await asyncio.sleep(0.01)
        assert woken == []

    run(check())


@pytest.mark.real_time
def test_a_timer_that_cannot_be_set_says_so() -> None:
    timer = TimerFd.create()
    if timer is None:
        pytest.skip("no timerfd here")
    timer.close()
    with pytest.raises(OSError, match="timerfd_settime"):
        timer.set(time.monotonic())


@pytest.mark.real_time
def test_without_the_system_call_there_is_no_timer() -> None:
    assert TimerFd.create("no_such_function") is None


@pytest.mark.asyncio
async def test_no_cap_never_waits() -> None:
    slots = Slots(None)
    assert [await slots.acquire() for _ in range(100)] == [None] * 100
    slots.release()
    assert slots.waiting == 0


@pytest.mark.asyncio
async def test_slots_go_to_who_waits_longest_and_say_since_when() -> None:
    slots = Slots(1)
    assert await slots.acquire() is None
    first, second = asyncio.ensure_future(slots.acquire()), asyncio.ensure_future(slots.acquire())
    await asyncio.sleep(0)
    assert slots.waiting == 2
    before = time.monotonic()
    slots.release()
    after = time.monotonic()
    given = await first
    assert given is not None
    assert before <= given <= after
    assert not second.done()
    slots.release()
    await second
    slots.release()
    assert await slots.acquire() is None


@pytest.mark.asyncio
async def test_who_gives_up_waiting_loses_nobody_a_slot() -> None:
    slots = Slots(1)
    await slots.acquire()
    leaves, given_and_leaves, served = (asyncio.ensure_future(slots.acquire()) for _ in range(3))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    slots.release()  # to the second, which is cancelled before it can know
    given_and_leaves.cancel()
    assert await asyncio.wait_for(served, 30) is not None
    for one in (leaves, given_and_leaves):
        with pytest.raises(asyncio.CancelledError):
            await one
    slots.release()
    assert await asyncio.wait_for(slots.acquire(), 30) is None
    assert slots.waiting == 0
