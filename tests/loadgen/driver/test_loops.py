"""Which job is started when: the two loops on a stock of their own, with a real pacer and nothing sent."""

import asyncio
import time
from collections.abc import Iterable

import pytest

from loadgen.client.request import PreparedRequest
from loadgen.driver.closed_loop import ClosedLoop, first_depth
from loadgen.driver.open_loop import OpenLoop
from loadgen.driver.pacer import Pacer
from loadgen.driver.supply import RenderedTurn, Stock
from loadgen.errors import UsageError
from loadgen.plan import LoadJob
from tests.loadgen.driver.driving import scheduled, unscheduled

pytestmark = [pytest.mark.asyncio, pytest.mark.real_time]


class Bench:
    """A stock that renders nothing, and a list of what was started: index, intended, actual run time."""

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


async def test_at_the_end_of_the_jobs_an_idle_slot_is_not_hungry() -> None:
    hungry: list[int] = []
    bench = Bench()
    bench.stock.complete()
    loop = ClosedLoop(bench.stock, bench.pacer, bench.start, bench.t0, [0.0], lambda: hungry.append(1))
    loop.begin()
    assert hungry == []
    await bench.close()


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
