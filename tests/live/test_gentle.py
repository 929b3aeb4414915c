"""Gentle work runs behind everybody else's, and leaves nothing of that behind."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hardware.topology import NpuId
from serving.ids import NodeId, ReplicaId
from serving.instance.live import instance
from serving.instance.live.compute import InstancePlace, RankPlace
from serving.instance.live.gentle import NICENESS, run_gently
from serving.instance.live.instance import Instance
from tests.live.harness import SECRET, small_config

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_it_runs_at_low_priority_and_nothing_else_does() -> None:
    before = niceness()
    assert run_gently(niceness) == max(before, NICENESS)
    assert niceness() == before


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_gently(lambda: 1 // 0)


def test_a_system_that_forbids_it_has_it_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert run_gently(lambda: 7) == 7


def test_a_rank_that_was_built_gently_serves_at_the_usual_priority(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that computes, or copies experts, and was started by gentle work would be slow for ever."""
    before, seen = niceness(), []
    make = instance.make_compute
    monkeypatch.setattr(instance, "make_compute", lambda *args: seen.append(niceness()) or make(*args))
    config = small_config(STORYTELLER, hardware={"hbm_per_die_mib": 64}, engine={"threads": 2})
    rank = RankPlace(0, 2, 2, "decode#abc")
    place = InstancePlace(
        ReplicaId("decode#abc.r0"), "decode", NodeId("n"), (NpuId(0, 0),), shm / "ub", "127.0.0.1", 2, rank
    )
    others = set(os.listdir("/proc/self/task"))
    built = Instance(config, place, SECRET, gently=True)
    started = set(os.listdir("/proc/self/task")) - others
    assert seen == [max(before, NICENESS)]
    assert started
    assert {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in started} == {before}
    asyncio.run(built.stop())
