"""The cap: first come, first served; waiting is told apart; nothing is lost by cancelling."""

import asyncio
import time

import pytest

from loadgen.driver.slots import Slots

pytestmark = pytest.mark.asyncio


async def test_no_cap_never_waits() -> None:
    slots = Slots(None)
    assert [await slots.acquire() for _ in range(100)] == [None] * 100
    slots.release()
    assert slots.waiting == 0


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
