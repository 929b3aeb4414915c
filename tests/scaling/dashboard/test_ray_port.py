"""The port to Ray: if Ray blocks or fails, a response is still sent in time."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from serving.errors import ScaleError
from serving.scaling.dashboard.ray_port import RayPools
from serving.values.scaling_operations import ReadPools, ReleasePool, ScalePool

pytestmark = pytest.mark.asyncio


class Path:
    """The relevant part of `scale_path`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def ask(self, operation: Any) -> Any:
        self.calls.append((threading.current_thread().name, operation))
        if isinstance(operation, ReleasePool):
            raise ScaleError("there is no such pool", kind="unknown_pool")
        return {"pools": []}


async def test_operations_go_to_the_path_on_a_thread_of_their_own() -> None:
    path = Path()
    pools = RayPools(lambda: path)
    assert await pools.ask(ReadPools()) == {"pools": []}
    await pools.ask(ScalePool("decode", 3, None, "cli"))
    assert path.calls == [("pools-ray", ReadPools()), ("pools-ray", ScalePool("decode", 3, None, "cli"))]


async def test_a_no_comes_through_as_it_is() -> None:
    pools = RayPools(Path)
    with pytest.raises(ScaleError, match="no such pool") as caught:
        await pools.ask(ReleasePool("x", "page"))
    assert caught.value.kind == "unknown_pool"


async def test_a_connection_that_blocks_is_said_and_blocks_nobody_else() -> None:
    may = threading.Event()

    def connect() -> Path:
        may.wait(100)
        return Path()

    pools = RayPools(connect, connect_deadline_s=0.2)
    begun = time.monotonic()
    with pytest.raises(ScaleError, match=r"Ray does not answer within 0\.2 s") as caught:
        await pools.ask(ReadPools())
    assert caught.value.kind == "unavailable"
    assert time.monotonic() - begun < 50
    may.set()
    assert await RayPools(Path).ask(ReadPools()) == {"pools": []}
    while True:  # the blocked one continues as soon as it can
        try:
            assert await pools.ask(ReadPools()) == {"pools": []}
            break
        except ScaleError:
            assert time.monotonic() - begun < 60


async def test_a_call_that_never_ends_is_given_up() -> None:
    async def forever(_operation: object) -> None:
        await asyncio.sleep(60)

    pools = RayPools(lambda: SimpleNamespace(ask=forever), deadline_s=0.1, connect_deadline_s=0.1)
    with pytest.raises(ScaleError, match="does not answer"):
        await pools.ask(ReadPools())


async def test_a_connection_that_fails_is_tried_again() -> None:
    tries: list[int] = []

    def connect() -> Path:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no Ray there\nand many lines more")
        return Path()

    pools = RayPools(connect)
    with pytest.raises(ScaleError, match=r"Ray cannot be asked: no Ray there$") as caught:
        await pools.ask(ReadPools())
    assert caught.value.kind == "unavailable"
    assert await pools.ask(ReadPools()) == {"pools": []}
