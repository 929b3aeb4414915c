"""How long a system was not ready is measured from the last moment that it was."""

import asyncio
import time

from serving.tools.chaos.downtime import Downtime
from serving.tools.chaos.result import ChaosRun
from tests.tools.chaos.fake_system import FakeSystem


def test_from_the_last_moment_that_it_was_ready_to_the_next() -> None:
    run = ChaosRun("test", 0, "abc", "model")

    async def scene(system: FakeSystem) -> float:
        downtime = Downtime(run, system.url, None)
        await downtime.ask()
        assert run.downs == []
        before = time.monotonic()
        for ready in (False, False, True, True, False):
            system.ready = ready
            await downtime.ask()
        return before

    with FakeSystem() as system:
        before = asyncio.run(scene(system))
    first, second = run.downs
    assert first.begun_s <= before < first.ended_s <= second.begun_s < second.ended_s


def test_nobody_who_answers_is_down() -> None:
    run = ChaosRun("test", 0, "abc", "model")
    asyncio.run(Downtime(run, "http://127.0.0.1:1", None).ask())
    assert len(run.downs) == 1
