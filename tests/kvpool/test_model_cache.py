"""Model images in the pool: stored once, mapped by many, held while mapped, fetched from disk and from peers."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.errors import PoolError, PoolTimeoutError
from serving.ids import NodeId
from serving.kvpool.core.entry import EntryTier
from serving.kvpool.core.messages import Unhold
from serving.kvpool.live import model_cache, model_peer
from serving.kvpool.live.link_driver import Scope
from serving.kvpool.live.model_cache import MappedModel, ModelCache
from serving.kvpool.live.model_peer import ModelEntry, look
from serving.kvpool.live.segments import ExtentMap
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.values.pool_view import PoolView
from tests.kvpool.model_images import MIB, SIZE, content, filling, loaded
from tests.kvpool.pool_cluster import PoolCluster

Open = Callable[..., ModelCache]
N0, N1 = NodeId("n0"), NodeId("n1")


@pytest.fixture
def a_cache() -> Iterator[Open]:
    """Factory of caches, closed at the end."""
    made: list[ModelCache] = []

    def make(view: Callable[[], PoolView], node: NodeId = N0, scope: Scope = "pool", **more: Any) -> ModelCache:
        made.append(ModelCache("test", node, "secret", view, scope, **{"patience_s": 10.0, **more}))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


@pytest.fixture
def pool() -> Iterator[PoolCluster]:
    """One server of 16 MiB."""
    with PoolCluster() as cluster:
        yield cluster


@pytest.fixture
def cache(pool: PoolCluster, a_cache: Open) -> ModelCache:
    return a_cache(pool.view)


def place(view: PoolView, key: str, node: NodeId = N0) -> str:
    """The nearest copy of an image, for a process of one node."""
    places = ["nowhere"]
    for record in (server.record for server in view.servers):
        with contextlib.closing(ServerLink(record, hello_of("observer", node, "secret"))) as link:
            with contextlib.suppress(PoolError):
                if (found := look(link, ModelEntry.of(key))) is not None:
                    near = "memory" if found.tier is EntryTier.DRAM else "ssd"
                    places.append(near if record.node == node else "peer")
    return min(places, key=("memory", "ssd", "peer", "nowhere").index)


def must_not(_memory: memoryview) -> None:
    raise AssertionError("this image was to be made by somebody else")


def spoil(pool: PoolCluster, number: int, key: str) -> None:
    """Flip a bit of a stored image behind its server's back."""
    record = pool.process(number).record
    link = ServerLink(record, hello_of("spoiler", record.node, "secret"))
    found = look(link, ModelEntry.of(key))
    assert found is not None
    ExtentMap(record.segment, found.offset, found.nbytes, writable=True).memory[SIZE // 2] ^= 4
    link.close()


def test_what_one_stores_another_maps(pool: PoolCluster, cache: ModelCache, a_cache: Open) -> None:
    assert place(pool.view(), "m@1") == "nowhere"
    assert cache.load("m@1") is None
    assert cache.store("m@1", SIZE, filling(1))
    assert place(pool.view(), "m@1") == "memory"
    other = a_cache(pool.view)
    for image in (loaded(cache, "m@1"), loaded(other, "m@1")):
        assert image.data.readonly
        assert image.data == content(1)
    assert other.store("m@1", SIZE, must_not)
    assert cache.store("m@2", SIZE, filling(2)), "versions lie side by side"
    assert [loaded(other, f"m@{version}").data for version in (1, 2)] == [content(1), content(2)]


def test_a_pool_without_servers_keeps_nothing(a_cache: Open) -> None:
    cache = a_cache(lambda: PoolView("empty"))
    assert cache.load("m@1") is None
    assert not cache.store("m@1", SIZE, must_not)


def test_a_mapping_outlives_its_server(pool: PoolCluster, cache: ModelCache) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    image = loaded(cache, "m@1")
    pool.kill(0, listed=True)
    assert image.data == content(1)
    assert cache.load("m@1") is None
    assert not cache.store("m@1", SIZE, must_not)
    image.release()
    assert image.data == content(1)


def test_a_damaged_image_is_never_given_out(pool: PoolCluster, cache: ModelCache) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    spoil(pool, 0, "m@1")
    assert cache.load("m@1") is None
    assert place(pool.view(), "m@1") == "nowhere"
    assert cache.store("m@1", SIZE, filling(1))
    assert loaded(cache, "m@1").data == content(1)


def test_an_image_that_its_user_distrusts_is_looked_at_by_its_server(pool: PoolCluster, cache: ModelCache) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    loaded(cache, "m@1").distrust()
    assert place(pool.view(), "m@1") == "memory"  # its bytes are what was stored
    image = loaded(cache, "m@1")
    spoil(pool, 0, "m@1")
    image.distrust()
    assert place(pool.view(), "m@1") == "nowhere"


class SlowMaker:
    """Makes an image when released, in a separate thread; `fails` = it then raises."""

    def __init__(self, cache: ModelCache, *, fails: bool = False) -> None:
        self.go_on = threading.Event()
        begun = threading.Event()

        def make(memory: memoryview) -> None:
            begun.set()
            assert self.go_on.wait(60)
            if fails:
                raise OSError("the checkpoint is gone")
            filling(1)(memory)

        self._pool = ThreadPoolExecutor(1)
        self.result = self._pool.submit(cache.store, "m@1", SIZE, make)
        assert begun.wait(60)

    def end(self, after_s: float = 0.0) -> None:
        """Release it, after a delay."""
        threading.Timer(after_s, self.go_on.set).start()


def test_one_makes_it_and_the_others_wait(pool: PoolCluster, cache: ModelCache, a_cache: Open) -> None:
    maker, other = SlowMaker(cache), a_cache(pool.view)
    assert other.load("m@1") is None
    assert not a_cache(pool.view, patience_s=0.2).store("m@1", SIZE, must_not), "patience ends"
    maker.end(after_s=0.3)
    assert other.store("m@1", SIZE, must_not)
    assert maker.result.result(60)
    assert loaded(other, "m@1").data == content(1)


def test_whoever_waits_makes_it_when_the_maker_fails(pool: PoolCluster, cache: ModelCache, a_cache: Open) -> None:
    maker, other = SlowMaker(cache, fails=True), a_cache(pool.view)
    maker.end(after_s=0.3)
    assert other.store("m@1", SIZE, filling(1))
    with pytest.raises(OSError, match="checkpoint is gone"):
        maker.result.result(60)
    assert loaded(other, "m@1").data == content(1)


def test_what_is_mapped_is_not_evicted(pool: PoolCluster, cache: ModelCache, a_cache: Open) -> None:
    size = 9 * MIB
    assert cache.store("m@1", size, filling(1))
    early = a_cache(pool.view)
    image = loaded(early, "m@1")
    early.close()  # a hold is the process's, not the connection's
    other = a_cache(pool.view, patience_s=0.3)
    assert not other.store("m@2", size, must_not)
    first, second = loaded(cache, "m@1"), loaded(cache, "m@1")
    first.release()
    first.release()
    assert not other.store("m@2", size, must_not)
    assert image.data == second.data == content(1, size)
    second.release()
    assert other.store("m@2", size, filling(2))
    assert place(pool.view(), "m@1") == "nowhere"
    assert loaded(other, "m@2").data == content(2, size)


def test_an_image_that_no_server_can_hold(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "ROOM_S", 100.0)  # no wait for impossible space
    start = time.monotonic()
    assert not cache.store("m@1", 17 * MIB, must_not)
    assert time.monotonic() - start < 50


def test_a_second_server_takes_what_the_first_cannot(a_cache: Open) -> None:
    with PoolCluster(2) as pool:
        cache = a_cache(pool.view)
        images: list[MappedModel] = []
        for version in (1, 2):
            assert cache.store(f"m@{version}", 9 * MIB, filling(version))
            images.append(loaded(cache, f"m@{version}"))
        assert [image.data for image in images] == [content(version, 9 * MIB) for version in (1, 2)]


def test_a_slow_maker_keeps_all_or_nothing(a_cache: Open) -> None:
    with PoolCluster(write_lease_s=0.2) as pool:
        cache = a_cache(pool.view)

        def slowly(memory: memoryview) -> None:
            time.sleep(0.6)
            filling(1)(memory)

        kept = cache.store("m@1", SIZE, slowly)
        image = cache.load("m@1")
        assert kept == (image is not None)
        assert image is None or image.data == content(1)


def test_a_stopped_server_costs_a_timeout_and_no_more(
    pool: PoolCluster, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    monkeypatch.setattr(model_peer, "REPLY_S", 1.0)
    pool.process(0).freeze()
    start = time.monotonic()
    assert cache.load("m@1") is None
    assert not cache.store("m@1", SIZE, must_not)
    assert time.monotonic() - start < 50
    pool.process(0).resume()


def test_from_disk(tmp_path: Path, a_cache: Open) -> None:
    size = 9 * MIB
    with PoolCluster(ssd_folder=tmp_path, ssd_bytes=64 * MIB) as pool:
        cache = a_cache(pool.view)
        assert cache.store("m@1", size, filling(1))
        assert cache.store("m@2", size, filling(2))  # the first one frees space
        assert place(pool.view(), "m@1") == "ssd"
        assert loaded(cache, "m@1").data == content(1, size)
        assert place(pool.view(), "m@1") == "memory"
        pool.kill(0)
        pool.replace(0)
        assert place(pool.view(), "m@2") == "ssd"
        assert loaded(a_cache(pool.view), "m@2").data == content(2, size)


@pytest.fixture
def nodes() -> Iterator[tuple[PoolCluster, PoolCluster, Callable[[], PoolView]]]:
    """A server on each of two nodes, and the view of both."""
    with PoolCluster(name="far", node=N0) as far, PoolCluster(name="near", node=N1) as near:

        def view() -> PoolView:
            one, two = far.view(), near.view()
            return PoolView(f"{one.version}/{two.version}", one.servers + two.servers)

        yield far, near, view


Nodes = tuple[PoolCluster, PoolCluster, Callable[[], PoolView]]


def test_from_a_peer(nodes: Nodes, a_cache: Open) -> None:
    far, _near, view = nodes
    there, here = a_cache(view, N0), a_cache(view, N1)
    assert there.store("m@1", SIZE, filling(1))
    assert place(view(), "m@1", N1) == "peer"
    assert a_cache(view, N1, "node").load("m@1") is None
    assert loaded(here, "m@1").data == content(1)
    assert place(view(), "m@1", N1) == "memory"
    far.kill(0)
    assert loaded(a_cache(view, N1), "m@1").data == content(1)


def test_a_damaged_image_of_a_peer_is_not_taken(nodes: Nodes, a_cache: Open) -> None:
    far, _near, view = nodes
    there, here = a_cache(view, N0), a_cache(view, N1)
    assert there.store("m@1", SIZE, filling(1))
    spoil(far, 0, "m@1")
    assert here.load("m@1") is None
    assert place(view(), "m@1", N1) == "nowhere"


def test_a_peer_of_a_node_without_servers(nodes: Nodes, a_cache: Open) -> None:
    _far, near, view = nodes
    there, here = a_cache(view, N0), a_cache(view, N1)
    assert there.store("m@1", SIZE, filling(1))
    near.kill(0)
    assert here.load("m@1") is None
    assert place(view(), "m@1", N1) == "peer"


def test_a_draining_server_gets_nothing_new(pool: PoolCluster, cache: ModelCache) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    pool.drain(0)
    assert loaded(cache, "m@1").data == content(1)
    assert not cache.store("m@2", SIZE, must_not)


def test_a_hash_is_taken_unless_told_otherwise(pool: PoolCluster, cache: ModelCache, a_cache: Open) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    spoil(pool, 0, "m@1")
    assert loaded(a_cache(pool.view, verify=False), "m@1").data != content(1)
    assert cache.load("m@1") is None


def test_a_hold_is_ended_even_if_the_server_does_not_answer_at_first(
    cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.store("m@1", SIZE, filling(1))
    image = loaded(cache, "m@1")
    ask = ServerLink.ask
    failed: list[Unhold] = []

    def ask_late(self: ServerLink, kind: Any, message: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(message, Unhold) and len(failed) < 2:
            failed.append(message)
            raise PoolTimeoutError("late")
        return ask(self, kind, message, *rest, **named)

    monkeypatch.setattr(ServerLink, "ask", ask_late)
    image.release()
    assert len(failed) == 2
    assert cache.store("m@2", 12 * MIB, filling(2)), "a held image would leave no room"
