"""The controller actor, announcers and followers on a real Ray; run in a separate process by `test_pool_control`.

Ray reads its environment when it is imported, so the session has to be entered first.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import ray

from hardware.ray_resources import node_labels
from serving.cluster.membership import NAMESPACE
from serving.cluster.node_numbers import own_number
from serving.cluster.session import SystemSession
from serving.errors import ConfigError
from serving.kvpool.core.controller import ControlSettings
from serving.kvpool.live.pool_control import NAME, NamespaceChanges, PoolAnnouncer, PoolViewFollower
from serving.kvpool.live.replica import require_ub_memory
from serving.values.pool_view import EMPTY_VIEW, NamespaceRecord, PoolView, ServerRecord
from tests.e2e.server import ProcessTable
from tests.kvpool.pool_records import server_record

BORN = time.monotonic()
ACME = NamespaceRecord("acme", 100)


async def until(condition: Callable[[], bool], what: str, patience_s: float = 120.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


def describe(name: str, incarnation: str = "first", born: float = BORN) -> Callable[[], ServerRecord]:
    return lambda: server_record(name, incarnation, uptime_s=time.monotonic() - born)


def names(view: PoolView) -> list[str]:
    return [one.record.name for one in view.servers]


def controllers() -> list[int]:
    """Process ids of controller actors that descend from this process."""
    table = ProcessTable.read()
    found, grown = {os.getpid()}, True
    while grown:
        children = {pid for pid, parent in table.parents.items() if parent in found} - found
        found |= children
        grown = bool(children)
    return [pid for pid in found if table.titles.get(pid) == "ray::PoolControlActor"]


async def watched(follower: PoolViewFollower, expected: list[str], seconds: float) -> None:
    """Assert that the follower's view keeps these servers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert names(follower.view) == expected, follower.view
        await asyncio.sleep(0.02)


async def servers_come_and_go(settings: ControlSettings, follower: PoolViewFollower) -> PoolAnnouncer:
    await asyncio.sleep(0.3)
    assert follower.view == EMPTY_VIEW, "there is no controller yet, and that is no error"
    first, second = (PoolAnnouncer(settings, describe(name)) for name in "ab")
    first.start()
    second.start()
    view = await first.next_view()
    assert names(view) == ["a", "b"], "no view before both had time to appear"
    assert view.namespaces == (ACME,)
    await until(lambda: names(follower.view) == ["a", "b"], "the follower sees both")
    await second.leave()
    await until(lambda: names(follower.view) == ["a"], "one has left")
    return first


async def a_newer_server_of_the_same_name_wins(settings: ControlSettings) -> None:
    older, newer = (PoolAnnouncer(settings, describe("c", one, time.monotonic() - age)) for one, age in OLD_AND_NEW)
    await older.announce()
    older.check()
    await newer.announce()
    newer.check()
    await older.announce()
    with pytest.raises(RuntimeError, match="has this one's name"):
        older.check()
    await newer.leave()


OLD_AND_NEW = (("old", 5.0), ("new", 1.0))


async def the_controller_dies(announcer: PoolAnnouncer, follower: PoolViewFollower) -> None:
    changes = NamespaceChanges()
    await changes.set_namespace(NamespaceRecord("old", 1))
    await changes.drop_namespace("old")
    await changes.set_namespace(NamespaceRecord("acme", 7, 2.0))
    changed = NamespaceRecord("acme", 7, 2.0, (100, 1.0))
    await until(lambda: announcer.view.namespaces == (changed,), "the server knows the quota")
    (pid,) = controllers()
    os.kill(pid, signal.SIGKILL)
    await watched(follower, ["a"], 1.0)
    await until(lambda: controllers() not in ([], [pid]), "there is another one")
    await watched(follower, ["a"], 4.0)
    announcer_had = announcer.view
    await a_change_is_followed(follower)
    await until(lambda: announcer.view is not announcer_had, "its view is followed by servers")
    assert follower.view.namespaces == (changed,), "the successor learnt it"


async def the_controller_is_gone_for_good(follower: PoolViewFollower) -> None:
    (pid,) = controllers()
    ray.kill(ray.get_actor(NAME, NAMESPACE), no_restart=True)
    await until(lambda: controllers() not in ([], [pid]), "a server has made another one")
    await a_change_is_followed(follower)
    await watched(follower, ["a"], 4.0)
    had = follower.view
    await follower.refresh(60.0)
    assert follower.view is not had
    assert follower.view.version == had.version


async def a_change_is_followed(follower: PoolViewFollower) -> None:
    changes = NamespaceChanges()
    await changes.set_namespace(NamespaceRecord("new", 2))
    await until(lambda: follower.view.namespaces[-1].name == "new", "the follower sees it")
    await changes.drop_namespace("new")
    await until(lambda: follower.view.namespaces[-1].name != "new", "the follower sees its end")


def memory_is_bounded() -> None:
    @ray.remote(num_cpus=0, resources={"UB_MEMORY": 3})
    def take(wanted_mib: int) -> str:
        try:
            require_ub_memory(wanted_mib)
        except ConfigError as error:
            return str(error)
        return ""

    remote: Any = take
    enough, too_much = ray.get([remote.remote(3), remote.remote(4)])
    assert enough == ""
    assert "a memory server of 4 MiB was given 3 MiB of UB_MEMORY by Ray" in too_much
    assert own_number() == 5


async def main(session: str, directory: str) -> None:
    settings = ControlSettings(session, directory=directory, namespaces=(ACME,))
    follower = PoolViewFollower(period_s=0.1, patience_s=600.0)  # changes must not wait for that
    follower.start()
    announcer = await servers_come_and_go(settings, follower)
    await a_newer_server_of_the_same_name_wins(settings)
    await the_controller_dies(announcer, follower)
    await the_controller_is_gone_for_good(follower)
    await announcer.leave()
    await follower.stop()
    ray.kill(ray.get_actor(NAME, NAMESPACE), no_restart=True)
    await until(lambda: controllers() == [], "the next pool finds no controller")


def run(session: SystemSession, directories: Sequence[str]) -> None:
    """Run all cases, a pool for each directory, in a separate Ray that is ended afterwards."""
    try:
        ray.init(
            address="local",
            num_cpus=1,
            resources={"UB_MEMORY": 8},
            labels=node_labels(5),
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=str(session.ray_folder),
            object_store_memory=100 << 20,
        )
        memory_is_bounded()
        for directory in directories:
            asyncio.run(main(session.name, directory))
    finally:
        ray.shutdown()
        session.remove()
