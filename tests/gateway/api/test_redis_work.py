"""Work items in a real Redis do what those in memory do, also when gateways write at the same moment."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.errors import UnavailableError
from serving.gateway.api.work_store import MemoryWorkStore, WorkStore
from serving.gateway.core.work_items import LeaseLostError, WorkFullError, WorkLimits
from serving.gateway.live.redis_work import RedisWorkStore
from tests.kvpool.redis_process import RedisProcess, needs_redis
from tests.kvpool.waits import PATIENCE_S

pytestmark = needs_redis

LIMITS = WorkLimits(items=3, size_bytes=30, seconds=30.0, lease_s=5.0)
_NAMES = st.sampled_from("abcd")
_OWNERS = st.sampled_from(["g1", "g2"])
_STEPS = st.one_of(
    st.tuples(st.just("add"), _NAMES, st.integers(1, 9), _OWNERS),
    st.tuples(st.just("append"), _NAMES, _OWNERS, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("claim"), _NAMES, _OWNERS),
    st.tuples(st.just("release"), _NAMES, _OWNERS),
    st.tuples(st.just("cancel"), _NAMES),
    st.tuples(st.just("delete"), _NAMES),
    st.tuples(st.just("wait"), st.floats(0.1, 12.0)),
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.end()


def opened(redis: RedisProcess, limits: WorkLimits = LIMITS, **given: Any) -> RedisWorkStore:
    return RedisWorkStore("test", redis.url, limits, "[kvcache] directory", timeout_s=PATIENCE_S, **given)


async def applied(store: WorkStore, step: tuple[Any, ...]) -> object:
    """One step's result, or the kind of its error."""
    kind, name, *rest = step
    try:
        match kind:
            case "add":
                if await store.get("n", name) is not None:
                    return None
                return await store.add("n", name, bytes(rest[0]), rest[1])
            case "append":
                return await store.append("n", name, rest[0], [b"xx"] * rest[1], done=rest[2])
            case "claim":
                return await store.claim("n", name, rest[0])
            case "release":
                await store.release("n", name, rest[0])
                return None
            case "cancel":
                return await store.cancel("n", name)
            case _:
                return await store.delete("n", name)
    except (LeaseLostError, WorkFullError) as error:
        return type(error)


@given(steps=st.lists(_STEPS, max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_redis_does_what_memory_does(redis: RedisProcess, steps: list[tuple[Any, ...]]) -> None:
    now = [time.time()]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    async def through() -> None:
        gateways = [opened(redis, clock=lambda: now[0]) for _ in range(2)]
        memory = MemoryWorkStore(LIMITS, lambda: now[0])
        for index, step in enumerate(steps):
            clock()
            if step[0] == "wait":
                now[0] += step[1]
                continue
            assert await applied(gateways[index % 2], step) == await applied(memory, step), step
            assert await gateways[0].items("n") == await memory.items("n")
            assert sorted(await gateways[1].unowned()) == sorted(await memory.unowned())
            for name in await memory.items("n"):
                assert await gateways[0].value("n", name) == await memory.value("n", name)
                assert await gateways[1].records("n", name, 1, 2) == await memory.records("n", name, 1, 2)
        for store in gateways:
            await store.close()

    with redis.client() as client:
        client.flushall()
        asyncio.run(through())
        for name in client.keys("cloudmatrix:work:test:n"):
            sizes = [len(client.get(f"cloudmatrix:work:test:n:{one.decode()}")) +
                     sum(map(len, client.lrange(f"cloudmatrix:work:test:n:{one.decode()}:records", 0, -1)))
                     for one in client.hkeys(name) if not one.startswith(b"#")]  # fmt: skip
            assert int(client.hget(name, "#bytes")) == sum(sizes)
            assert client.pttl(name) > 0, "it expires as a whole"


@pytest.mark.asyncio
async def test_one_of_many_gateways_gets_the_work(redis: RedisProcess) -> None:
    with redis.client() as client:
        client.flushall()
    gateways = [opened(redis) for _ in range(8)]
    await gateways[0].add("n", "a", b"v", "")
    claims = await asyncio.gather(*(store.claim("n", "a", f"g{index}") for index, store in enumerate(gateways)))
    [owner] = [index for index, item in enumerate(claims) if item is not None]
    writes = (store.append("n", "a", f"g{index}", [b"x"]) for index, store in enumerate(gateways))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [index for index, one in enumerate(results) if not isinstance(one, LeaseLostError)] == [owner]
    assert await gateways[1].records("n", "a", 0) == [b"x"]
    adds = [store.add("n", f"{index}", b"v", "g") for index, store in enumerate(gateways)]
    outcomes = await asyncio.gather(*adds, return_exceptions=True)
    assert sum(not isinstance(one, WorkFullError | UnavailableError) for one in outcomes) == 2, "three fit"
    for store in gateways:
        await store.close()


@pytest.mark.asyncio
async def test_a_write_that_is_repeated_is_made_once(redis: RedisProcess) -> None:
    store = opened(redis)
    await store.add("once", "a", b"v", "g")
    for done, at in ((False, 0), (True, 1)):
        first = await store.append("once", "a", "g", [b"x"], done=done, at=at)
        assert await store.append("once", "a", "g", [b"x"], done=done, at=at) == first
    assert await store.records("once", "a", 0) == [b"x", b"x"]
    with pytest.raises(LeaseLostError):
        await store.append("once", "a", "g", [b"x"], at=0)
    await store.close()


@pytest.mark.asyncio
async def test_what_is_remembered_of_work_is_bounded(redis: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a namespace that Redis has forgotten, and own items of which no end is ever written, such as files."""
    monkeypatch.setattr("serving.gateway.live.redis_work._MOST_SEEN", 2)
    with redis.client() as client:
        client.flushall()
        now = [1000.0]
        store = opened(redis, clock=lambda: now[0])
        for name in "abc":
            await store.add("bound", name, b"v", "g")
            await store.append("bound", name, "g", [b"x"])
        assert len(store._seen) == 2
        client.delete("cloudmatrix:work:test:bound")
        now[0] += LIMITS.seconds + LIMITS.lease_s + 1
        await store.add("other", "a", b"v", "g")
        assert client.zcard("cloudmatrix:work:test") == 1
        await store.close()


@pytest.mark.asyncio
async def test_a_redis_that_is_away_is_named(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    server.start()
    try:
        store = opened(server)
        await store.add("n", "a", b"v", "g")
        server.kill()
        with pytest.raises(UnavailableError, match=r"\[kvcache\] directory"):
            await store.append("n", "a", "g", [b"x"])
        await store.close()
    finally:
        server.end()
