"""Responses in a real Redis: shared by gateways, bounded, expiring; an unreachable Redis is a 503."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.config.gateway import GatewayConfig
from serving.config.kvcache import KvCacheConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.gateway.api.settings import ServedModel
from serving.gateway.core.kept_responses import KeepLimits
from serving.gateway.live.redis_responses import RedisResponseStore
from serving.gateway.live.response_places import response_store
from tests.gateway.api.support import Harness, check, requested
from tests.kvpool.redis_process import RedisProcess, needs_redis
from tests.kvpool.waits import PATIENCE_S

pytestmark = needs_redis


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.end()


@pytest.fixture
def redis(running: RedisProcess) -> RedisProcess:
    with running.client() as client:
        client.flushall()
    return running


def opened(redis: RedisProcess, **limits: Any) -> RedisResponseStore:
    return RedisResponseStore(redis.url, KeepLimits(**limits), "[kvcache] directory", timeout_s=PATIENCE_S)


@pytest.mark.asyncio
async def test_what_one_gateway_keeps_another_finds(redis: RedisProcess) -> None:
    one, other = opened(redis), opened(redis)
    assert await one.put("acme", "a", b"x")
    assert await other.get("acme", "a") == b"x"
    assert await other.get("globex", "a") is None
    assert await other.delete("acme", "a")
    assert not await one.delete("acme", "a")
    assert await one.get("acme", "a") is None
    await one.close()
    await other.close()


def test_limits_are_those_of_memory(redis: RedisProcess) -> None:
    async def through() -> None:
        store = opened(redis, responses=2, size_bytes=10, seconds=60.0)
        for name in "abc":
            assert await store.put("acme", name, b"xxx")
        assert [await store.get("acme", name) for name in "abc"] == [None, b"xxx", b"xxx"]
        assert await store.put("acme", "d", bytes(9))
        assert [await store.get("acme", name) is not None for name in "bcd"] == [False, False, True]
        assert not await store.put("acme", "e", bytes(11))
        await store.close()

    asyncio.run(through())
    with redis.client() as client:
        assert set(client.keys()) == {b"cloudmatrix:response:acme:d", b"cloudmatrix:responses:acme"}
        assert all(0 < client.pttl(key) <= 60_000 for key in client.keys())


def test_a_conversation_over_a_redis_that_goes_away(
    served: ServedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisProcess(tmp_path)
    server.start()

    async def through() -> None:
        stores = [opened(server) for _ in range(2)]
        first, second = (Harness(served, responses=store).app for store in stores)
        kept = await requested(first, "POST", "/v1/responses", json={"model": "tiny", "input": "hi"})
        name = kept.json()["id"]
        more = {"model": "tiny", "input": "more", "previous_response_id": name}
        assert (await requested(second, "POST", "/v1/responses", json=more)).status_code == 200
        server.kill()
        with caplog.at_level(logging.WARNING):
            answer = await requested(first, "POST", "/v1/responses", json={"model": "tiny", "input": "hi"})
            assert answer.status_code == 200
        assert "is not stored: the Redis of [kvcache] directory" in caplog.text
        for method in ("GET", "DELETE"):
            check(await requested(first, method, f"/v1/responses/{name}"), 503, code="service_unavailable")
        for store in stores:
            await store.close()

    try:
        asyncio.run(through())
    finally:
        server.end()


def test_which_place_a_configuration_names(redis: RedisProcess) -> None:
    def place(directory: str, **gateway: Any) -> RedisResponseStore | None:
        config = ServeConfig(
            model=ModelConfig(path=Path("m")),
            kvcache=KvCacheConfig(directory=directory),
            gateway=GatewayConfig(**gateway),
        )
        found = response_store(config, KeepLimits(config.gateway.kept_responses))
        assert found is None or isinstance(found, RedisResponseStore)
        return found

    assert place("embedded") is None
    assert place(redis.url) is not None
    assert place(redis.url, response_store="memory") is None
    assert place(redis.url, kept_responses=0) is None
    assert place("embedded", response_store=redis.url) is not None
    with pytest.raises(ConfigError, match=r"^\[gateway\] response_store is not a Redis address"):
        place("embedded", response_store="redis://host:secret/0")
