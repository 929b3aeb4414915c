"""The port to Ray: whatever blocks or breaks over there, an answer comes in time."""

import asyncio
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from serving.dashboard.ray_port import RayPools
from serving.errors import ScaleError

pytestmark = pytest.mark.asyncio


@dataclass
class Answer:
    """As `ScaleAnswer`."""

    target: int


class Path:
    """`scale_path`, as far as it matters here."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def pools_state(self) -> dict[str, Any]:
        self.calls.append(("state", threading.current_thread().name))
        return {"pools": []}

    async def scale_pool(self, *arguments: Any) -> Answer:
        self.calls.append(("scale", *arguments))
        return Answer(arguments[1])

    async def hold_pool(self, *arguments: Any) -> Answer:
        self.calls.append(("hold", *arguments))
        return Answer(1)

    async def release_hold(self, pool: str, by: str) -> Answer:
        raise ScaleError("there is no such pool", kind="unknown_pool")

    async def decisions(self, *arguments: Any) -> list[dict[str, Any]]:
        self.calls.append(("decisions", *arguments))
        return [{"id": 1}]


async def test_calls_go_to_the_path_on_a_thread_of_their_own() -> None:
    path = Path()
    pools = RayPools(lambda: path)
    assert await pools.state() == {"pools": []}
    assert await pools.scale("decode", 3, None, "cli") == {"target": 3}
    assert await pools.hold("decode", 60.0, "page") == {"target": 1}
    assert await pools.decisions("decode", 4, 9) == [{"id": 1}]
    assert path.calls == [
        ("state", "pools-ray"),
        ("scale", "decode", 3, None, "cli"),
        ("hold", "decode", 60.0, "page"),
        ("decisions", "decode", 4, 9),
    ]


async def test_a_no_comes_through_as_it_is() -> None:
    pools = RayPools(Path)
    with pytest.raises(ScaleError, match="no such pool") as caught:
        await pools.release("x", "page")
    assert caught.value.kind == "unknown_pool"


async def test_a_connection_that_blocks_is_said_and_blocks_nobody_else() -> None:
    may = threading.Event()

    def connect() -> Path:
        may.wait(10)
        return Path()

    pools = RayPools(connect, connect_deadline_s=0.2)
    begun = time.monotonic()
    with pytest.raises(ScaleError, match=r"Ray does not answer within 0\.2 s") as caught:
        await pools.state()
    assert caught.value.kind == "unavailable"
    assert time.monotonic() - begun < 5
    may.set()
    assert await RayPools(Path).state() == {"pools": []}
    while True:  # the one that was blocked goes on as soon as it can
        try:
            assert await pools.state() == {"pools": []}
            break
        except ScaleError:
            assert time.monotonic() - begun < 10


async def test_a_call_that_never_ends_is_given_up() -> None:
    async def forever() -> None:
        await asyncio.sleep(60)

    pools = RayPools(lambda: SimpleNamespace(pools_state=forever), deadline_s=0.1, connect_deadline_s=0.1)
    with pytest.raises(ScaleError, match="does not answer"):
        await pools.state()


async def test_a_connection_that_fails_is_tried_again() -> None:
    tries: list[int] = []

    def connect() -> Path:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no Ray there\nand many lines more")
        return Path()

    pools = RayPools(connect)
    with pytest.raises(ScaleError, match=r"Ray cannot be asked: no Ray there$") as caught:
        await pools.state()
    assert caught.value.kind == "unavailable"
    assert await pools.state() == {"pools": []}
