"""Low-priority work yields to all other work, and leaves no thread at low priority."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hardware.topology import NpuId
from serving.config.serve import ServeConfig
from serving.ids import NodeId, ReplicaId
from serving.instance.live.compute import Compute
from serving.instance.live.gentle import NICENESS, run_gently
from serving.instance.live.instance import Instance, make_compute
from serving.instance.live.pool_access import PoolAccess
from serving.values.instances import InstancePlace, RankPlace
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


def test_a_rank_that_is_built_gently_starts_nothing_that_stays_slow(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its priority cannot be raised again: a thread that copies experts would stay slow."""
    before, seen, left = niceness(), list[int](), set[threading.Thread]()

    def make(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> Compute:
        others = set(threading.enumerate())
        made = make_compute(config, place, access)
        seen.append(niceness())
        left.update(set(threading.enumerate()) - others)
        return made

    monkeypatch.setattr("serving.instance.live.instance.make_compute", make)
    config = small_config(STORYTELLER, hardware={"hbm_per_die_mib": 64})
    rank = RankPlace(0, 2, 2, "decode#abc")
    place = InstancePlace(
        ReplicaId("decode#abc.r0"), "decode", NodeId("n"), (NpuId(0, 0),), shm / "ub", "127.0.0.1", 1, rank
    )
    built = Instance(config, place, SECRET, gently=True)
    assert seen == [max(before, NICENESS)]
    assert not left
    asyncio.run(built.stop())
