"""Waits when Ray's control store does not respond: one thread, and no caller beyond its deadline."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import ray

from serving.cluster.gcs_store import ActorLookup
from serving.errors import ScaleError
from serving.kvpool.core.controller import ControlSettings
from serving.kvpool.live import pool_control
from serving.kvpool.live.pool_control import PoolAnnouncer, PoolViewFollower
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.live import observe, scale_path
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.scaling.live.observe import RayCluster
from serving.values.scaling_operations import ReadPools
from tests.kvpool.pool_records import server_record


class SilentStore:
    """Calls wait until the store is back; callers are recorded."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.asked: list[int] = []

    def find(self, *_: object, **__: object) -> str:
        """Find blocks."""
        self.asked.append(threading.get_ident())
        self.back.wait(60.0)
        return "the actor"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentStore]:
    """All look-ups in Ray wait for the store, and callers wait a moment; ends the waiting threads."""
    silent = SilentStore()
    for owner, name, other in (
        (ray, "get_actor", silent.find),
        (ray, "nodes", silent.find),
        (pool_control, "pool_control", silent.find),
        (pool_control, "CALL_DEADLINE_S", 0.01),
        (scale_path, "CALL_DEADLINE_S", 0.01),
        (scale_path, "_BOARD", ActorLookup(silent.find)),
        (observe, "CALL_DEADLINE_S", 0.01),
    ):
        monkeypatch.setattr(owner, name, other)
    yield silent
    silent.back.set()


def ask_thrice(ask: Callable[[], Awaitable[Any]], told: type[Exception]) -> None:
    """Assert that `told` is raised three times. The timeout turns an endless wait into a failure."""

    async def scene() -> None:
        for _ in range(3):
            question = asyncio.ensure_future(ask())
            done, _pending = await asyncio.wait([question], timeout=60.0)
            assert done, "it waits without end"
            with pytest.raises(told):
                question.result()

    asyncio.run(scene())


def test_however_often_a_silent_store_is_asked_one_thread_waits(store: SilentStore) -> None:
    lookup = ActorLookup(store.find)
    ask_thrice(lambda: lookup.answer(0.01), TimeoutError)
    with pytest.raises(TimeoutError):
        lookup.wait(0.01)
    store.back.set()
    assert lookup.wait(60.0) == "the actor"
    assert asyncio.run(lookup.answer(30.0)) == "the actor"
    assert store.asked[0] != threading.get_ident()


def test_what_the_question_raises_is_told() -> None:
    def find() -> NoReturn:
        raise ValueError("no such actor")

    lookup = ActorLookup(find)
    with pytest.raises(ValueError, match="no such actor"):
        lookup.wait(60.0)
    with pytest.raises(ValueError, match="no such actor"):
        asyncio.run(lookup.answer(30.0))


def test_a_memory_server_that_finds_no_controller_goes_on(store: SilentStore) -> None:
    announcer = PoolAnnouncer(ControlSettings("s"), lambda: server_record("a"))
    ask_thrice(announcer.announce, TimeoutError)
    assert len(store.asked) == 1


def test_a_follower_that_finds_no_controller_asks_with_one_thread(
    store: SilentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = asyncio.Event()

    class Counted(ActorLookup):
        asked = 0

        async def answer(self, deadline_s: float) -> Any:
            self.asked += 1
            if self.asked == 4:
                rounds.set()
            return await super().answer(deadline_s)

    monkeypatch.setattr(pool_control, "ActorLookup", Counted)

    async def scene() -> None:
        follower = PoolViewFollower(period_s=0.001)
        follower.start()
        await asyncio.wait_for(rounds.wait(), 60.0)
        await follower.stop()

    asyncio.run(scene())
    assert len(store.asked) == 1


@pytest.mark.parametrize("turns", range(5))
def test_a_follower_stops_though_the_controller_answers_just_then(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica's end waits for it. Its cancellation was lost, and Serve killed the replica after ten minutes."""
    answers: asyncio.Queue[None] = asyncio.Queue()
    asked = asyncio.Event()

    async def next_view(*_: object) -> None:
        asked.set()
        await answers.get()

    controller = SimpleNamespace(next_view=SimpleNamespace(remote=next_view))
    monkeypatch.setattr(ray, "get_actor", lambda *_: controller)

    async def scene() -> None:
        follower = PoolViewFollower(period_s=0.001)
        follower.start()
        async with asyncio.timeout(60.0):
            await asked.wait()
            answers.put_nowait(None)
            for _ in range(turns):
                await asyncio.sleep(0)
            await follower.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody asks on"

    asyncio.run(scene())


def test_who_asks_the_board_again_and_again_takes_one_thread(store: SilentStore) -> None:
    ask_thrice(lambda: scale_path.ask(ReadPools()), ScaleError)
    assert len(store.asked) == 1


def test_a_board_that_finds_nobody_takes_a_thread_for_each(store: SilentStore) -> None:
    cluster = RayCluster("app", ["decode"], with_cache=True)
    ask_thrice(lambda: cluster.poll(ClusterSnapshot(0.0)), ClusterSilentError)
    assert len(store.asked) == 4, "Serve's controller, the nodes, membership, the KV-cache pool's controller"
