"""The directory in a real Redis, which dies, hangs and comes back."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from serving.errors import ConfigError, PoolError, PoolTimeoutError, PoolUnreachableError
from serving.kvpool.core.controller import ROUND_S, ControlSettings, ControlState
from serving.kvpool.live.controller_host import ControllerHost
from serving.kvpool.live.redis_store import PREFIX, RedisStore
from serving.values.pool_view import NamespaceRecord, ServerState
from tests.kvpool.pool_records import names, server_record
from tests.kvpool.redis_process import RedisProcess, needs_redis
from tests.kvpool.waits import PATIENCE_S, wait_for
from tests.stopping import stop_process

pytestmark = needs_redis

ACME = NamespaceRecord("acme", 1 << 40)
STATE = ControlState(
    "one",
    (server_record("a", state=ServerState.DRAINING, models=("m@1",)), server_record("b", uptime_s=0.125)),
    (ACME, NamespaceRecord("globex"), NamespaceRecord("set", 5, 2.5, (7, 1.0))),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    process.start()
    yield process
    process.end()


@pytest.fixture
def server(running: RedisProcess) -> RedisProcess:
    """An empty Redis."""
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture
def store(server: RedisProcess) -> Iterator[RedisStore]:
    with RedisStore(server.url, "one", timeout_s=PATIENCE_S) as opened:
        yield opened


def test_what_is_saved_is_loaded(store: RedisStore) -> None:
    assert store.load() is None
    store.save(STATE, 60.0)
    assert store.load() == STATE
    empty = ControlState("one")
    store.save(empty, 60.0)
    assert store.load() == empty


def test_each_save_replaces_everything(store: RedisStore, server: RedisProcess) -> None:
    store.save(STATE, 60.0)
    less = replace(STATE, servers=STATE.servers[:1], namespaces=STATE.namespaces[:1])
    store.save(less, 60.0)
    assert store.load() == less
    with server.client() as client:
        assert client.exists(f"{PREFIX}:server:one:b") == 0


def test_servers_that_are_not_saved_again_vanish_and_namespaces_stay(store: RedisStore) -> None:
    store.save(STATE, 0.1)
    time.sleep(0.15)
    assert store.load() == replace(STATE, servers=())


def test_another_start_sees_the_namespaces_and_not_the_servers(store: RedisStore, server: RedisProcess) -> None:
    store.save(STATE, 60.0)
    other = RedisStore(server.url, "two", timeout_s=PATIENCE_S)
    assert other.load() == replace(STATE, servers=())
    other.close()


def test_keys_of_something_else_are_told_and_not_overwritten(store: RedisStore, server: RedisProcess) -> None:
    store.save(STATE, 60.0)
    with server.client() as client:
        client.hset(f"{PREFIX}:namespaces", "acme", "much")
        with pytest.raises(PoolError, match=r"holds cloudmatrix:\* of another program"):
            store.load()
        client.delete(f"{PREFIX}:namespaces")
        client.set(f"{PREFIX}:namespaces", "text")
        with pytest.raises(PoolError, match="refused the request"):
            store.load()
        host = ControllerHost(ControlSettings("one"), store, save_period_s=0.01)
        time.sleep(0.1)
        host.close()
        assert client.get(f"{PREFIX}:namespaces") == b"text"


@pytest.mark.parametrize(
    "url",
    ["http://there", "redis://host:port", "redis://h/0?socket_timeout=soon", "redis://h/x", "redis://:se/cret@h:1/0"],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^the setting is not a Redis address") as refusal:
        RedisStore(url, "one", setting="the setting")
    assert "se/cret" not in str(refusal.value), "a password"
    assert "'se'" not in str(refusal.value), "a part of it"
    assert refusal.value.__suppress_context__, "nor in what a log says of its cause"


def test_a_redis_that_was_killed_is_used_again_once_it_is_back(store: RedisStore, server: RedisProcess) -> None:
    store.save(STATE, 60.0)
    server.kill()
    for _ in range(3):
        with pytest.raises(PoolUnreachableError, match="cannot be reached"):
            store.save(STATE, 60.0)
        with pytest.raises(PoolUnreachableError):
            store.load()
    server.start()
    assert store.load() is None, "it came back empty"
    store.save(STATE, 60.0)
    assert store.load() == STATE


def saved(store: RedisStore) -> bool:
    try:
        store.save(STATE, 60.0)
        return store.load() == STATE
    except PoolTimeoutError:
        return False


def test_a_redis_that_hangs_costs_one_timeout(server: RedisProcess) -> None:
    hasty = RedisStore(server.url, "one", timeout_s=0.5)
    wait_for(lambda: saved(hasty), "it answers")
    stop_process(server.pid)
    try:
        begun = time.monotonic()
        with pytest.raises(PoolTimeoutError, match="did not answer in time"):
            hasty.save(STATE, 60.0)
        assert 0.4 < time.monotonic() - begun < 50.0
    finally:
        os.kill(server.pid, signal.SIGCONT)
    wait_for(lambda: saved(hasty), "it answers again, and no late answer is taken for another one")
    hasty.close()


def test_the_pool_is_served_while_its_redis_is_dead(server: RedisProcess, caplog: pytest.LogCaptureFixture) -> None:
    settings = ControlSettings("one", directory=server.url, namespaces=(ACME,))
    host = ControllerHost(settings, save_period_s=0.05)
    try:
        host.announce(server_record("a"), ())
        time.sleep(ROUND_S)
        before = host.announce(server_record("a"), ()).view
        server.kill()
        host.set_namespace(NamespaceRecord("later", 3))
        time.sleep(0.3)
        assert names(host.view()) == names(before) == ["a"]
        server.start()
        with RedisStore(server.url, "one", PATIENCE_S) as reader:
            wait_for(lambda: kept(reader, "later"), "the whole state is back in an empty Redis")
            state = reader.load()
            assert state is not None
            assert state.namespaces == (ACME, NamespaceRecord("later", 3))
            assert [one.name for one in state.servers] == ["a"]
    finally:
        host.close()
    successor = ControllerHost(settings)
    try:
        assert names(successor.view()) == ["a"], "no need to listen first"
    finally:
        successor.close()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2, warnings


def kept(store: RedisStore, namespace: str) -> bool:
    state = store.load()
    return state is not None and namespace in [record.name for record in state.namespaces]


def test_a_controller_that_starts_without_its_redis_does_not_lose_what_it_holds(server: RedisProcess) -> None:
    """The Redis hangs while the controller starts; once it responds, the view has the entries of earlier starts."""
    with RedisStore(server.url, "earlier", PATIENCE_S) as before:
        before.save(ControlState("earlier", (), (NamespaceRecord("kept", 9),)), 5.0)
    stop_process(server.pid)
    try:
        host = ControllerHost(ControlSettings("one", directory=server.url, namespaces=(ACME,)), save_period_s=0.05)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    try:
        host.announce(server_record("a"), ())
        with RedisStore(server.url, "one", PATIENCE_S) as reader:
            wait_for(lambda: kept(reader, "acme"), "the configuration's namespaces are there")
            assert kept(reader, "kept")
    finally:
        host.close()
