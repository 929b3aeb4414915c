"""Processes of a system are killed under load: running requests continue, and the dead processes are replaced."""

import asyncio
import contextlib
import os
import random
import signal

from msgspec.structs import replace

from tests.e2e.scaled import Scaled
from tests.e2e.server import Server, wait_for
from tests.e2e.streams import Streams
from tests.live.workload import GREEDY, Ask, tokens

BACK_S = 150.0
"""Dead processes are back within this time. Measured are 1 to 5 s; machines may be slow, and busy."""
SLOW_STEPS = "\n[chaos]\nenabled = true\nleast_step_s = 0.02\n"
"""So that streams last: 150 tokens take 3 s."""


def asks(seed: int) -> list[Ask]:
    """Eight requests of two prompts, so that both decode instances get some."""
    rng = random.Random(seed)
    prompts = [tokens(rng, 40), tokens(rng, 40)]
    return [Ask(prompts[i % 2], replace(GREEDY, max_tokens=150)) for i in range(8)]


def pids_of(server: Server, title: str) -> list[int]:
    """Processes with this in their title."""
    return [pid for pid, line in server.processes().items() if title in line]


def pid_of(server: Server, title: str) -> int:
    """The one process with this in its title."""
    (pid,) = pids_of(server, title)
    return pid


def kill_under_load(server: Server, seed: int, *titles: str) -> None:
    """Kill processes while streams run; assert that all streams finish without failure."""

    async def scene() -> list[list[int]]:
        streams = Streams(server, asks(seed))
        running = await streams.start()
        for title in titles:
            os.kill(pid_of(server, title), signal.SIGKILL)
        await running
        assert all(stream.finish == "length" for stream in streams.streams)
        return [stream.tokens for stream in streams.streams]

    told = asyncio.run(scene())
    again = Streams(server, asks(seed)[:2])
    asyncio.run(again.run())
    assert told == [again.streams[i % 2].tokens for i in range(8)], "as undisturbed"


def wait_for_the_dashboard(server: Scaled) -> None:
    """Wait until Ray's dashboard, at the printed address, lists the deployments."""

    def lists() -> bool:
        with contextlib.suppress(OSError):
            return "autoscaler" in server.get("/api/serve/applications/", **server.dashboard)
        return False

    wait_for(lists, "Ray's dashboard serves", BACK_S, server.processes)
