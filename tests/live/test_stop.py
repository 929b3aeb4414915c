"""The end of an instance while a part of it hangs."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.live.harness import Pools, small_config, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def test_a_pull_that_hangs_blocks_neither_the_event_loop_nor_the_end(checkpoint: Path, shm: Path) -> None:
    """The loop was blocked until the pull ended, past every deadline of the stop: no health checks, no other link."""
    go_on, hangs = threading.Event(), threading.Event()

    def hang(order: object) -> None:
        hangs.set()
        go_on.wait(60.0)

    async with Pools(small_config(checkpoint), shm) as pools:
        instance = await pools.add("decode")
        instance.loop.moves._threads.submit(hang, "a ticket of nobody")
        await until(hangs.is_set, "the pull is under way")
        pools.unlist(instance)
        pools.instances.remove(instance)
        stopping = asyncio.create_task(instance.stop())
        ticks = 0
        while not stopping.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await stopping
        assert not go_on.is_set(), "it did not wait for the pull"
        assert ticks > 10, "the event loop went on meanwhile"
        assert not instance.place.segment_path.exists()
        go_on.set()
