"""A system of three pools that responds like the real one: replicas take a moment to start and to leave.

A JSON file, read at every poll, sets its behaviour: `as_new`, `load` (0..1), `silent` (no response at all), `lost`
(its autoscaler does not respond), `seen_s` (age of its reports), `policy`, `start_s`, `drain_s`, `dead` (pools
whose first replica is dead), `supernode` (384 NPUs, large instances), `experts` (see `fake_experts`).
"""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.errors import ScaleError
from serving.scaling.dashboard.answers import JsonObject
from serving.values.scaling_operations import (
    Answer,
    DrainGroupRank,
    HoldPool,
    PoolOperation,
    ReadDecisions,
    ReadEvents,
    ReadExperts,
    ReadHistory,
    ReadPools,
    RebalanceGroup,
    ReleasePool,
    ResizeRankGroup,
    ScalePool,
)
from tests.scaling.dashboard.fake_experts import fake_experts, ordered

SMALL = 32, {"prefill": 2, "decode": 4, "kvcache": 0}
SUPERNODE = 384, {"prefill": 16, "decode": 96, "kvcache": 0}
"""NPUs in all, and of one replica of each pool."""
PER_HOST = 8
PER_NODE = 16
HBM_BYTES = 64 << 30
MANUAL_HOLD_S = 600.0
SHORTAGE = "an instance needs 4 NPUs whole on one node, 2 are free"


@dataclass
class FakePool:
    """One pool: its replicas by name, each with its time of serving and, if it drains, its end."""

    name: str
    target: int
    serves_at: dict[str, float] = field(default_factory=dict)
    gone_at: dict[str, float] = field(default_factory=dict)
    held_until: float = 0.0
    held_by: str = ""
    made: int = 0
    dead: str = ""

    def settle(self, now: float, start_s: float, drain_s: float) -> None:
        """Start missing replicas, drain surplus ones, remove ended ones."""
        for name in [name for name, at in self.gone_at.items() if at <= now]:
            del self.gone_at[name], self.serves_at[name]
        staying = [name for name in self.serves_at if name not in self.gone_at]
        for name in staying[self.target :]:
            self.gone_at[name] = now + drain_s
        for _ in range(self.target - len(staying)):
            self.made += 1
            self.serves_at[f"{self.name[0]}{self.made:03}abcd"] = now + start_s

    def state(self, name: str, now: float) -> str:
        """State of one replica."""
        if name == self.dead:
            return "dead"
        if name in self.gone_at:
            return "draining"
        return "serving" if self.serves_at[name] <= now else "starting"


class FakePools:
    """`PoolsPort` without a system behind it."""

    def __init__(self, wishes: Path) -> None:
        self._wishes = wishes
        self.all_npus, self.each = SMALL
        self.ranks = 0
        self._begin()

    def _begin(self) -> None:
        self._decisions: list[JsonObject] = []
        self._events: list[JsonObject] = []
        self.pools = {name: FakePool(name, target) for name, target in (("prefill", 2), ("decode", 3), ("kvcache", 1))}
        for pool in self.pools.values():
            pool.settle(0.0, 0.0, 0.0)
        self._note("prefill", 1, 2, "burst", "14,200 prompt tokens queued, 3.1 s of work: one more", "autoscaler")
        self._note("decode", 4, 3, "forecast", "load of 0.41 for 120 s; 3 instances would be at 0.55", "autoscaler")

    async def ask(self, operation: PoolOperation[Answer]) -> Answer:
        """Respond to a request; see PoolsPort."""
        told: Any
        asked: Any = operation
        match asked:
            case ReadPools():
                told = self._state()
            case ReadExperts():
                told = fake_experts(self._look().get("experts", ""))
            case RebalanceGroup(group, by):
                told = ordered(self._look().get("experts", ""), group, f"3 moves begin, asked for by {by}")
            case DrainGroupRank(group, rank, by):
                told = ordered(self._look().get("experts", ""), group, f"r{rank} drains, asked for by {by}")
            case ResizeRankGroup(group, ranks, by):
                told = ordered(self._look().get("experts", ""), group, f"{ranks} ranks, asked for by {by}")
            case ReadDecisions(pool, after, limit):
                self._look()
                told = [d for d in self._decisions if pool in (None, d["pool"]) and int(str(d["id"])) > after][:limit]
            case ReadEvents(pool, after, limit):
                self._look()
                told = [e for e in self._events if pool in (None, e["pool"]) and int(str(e["id"])) > after][:limit]
            case ReadHistory(after):
                told = [one for one in _history(time.time(), self._look().get("load", 0.0)) if one["at"] > after]
            case ScalePool(pool, replicas, hold_s, by):
                told = self._scale(pool, replicas, hold_s, by)
            case HoldPool(pool, hold_s, by):
                found = self._find(pool)
                self._hold(found, hold_s, by)
                self._note(pool, found.target, found.target, "held", f"held by {by}", by)
                told = {"pool": pool, "target": found.target, "message": f"{pool}: {found.target} stands"}
            case ReleasePool(pool, by):
                found = self._find(pool)
                found.held_until = 0.0
                self._note(pool, found.target, found.target, "stay", f"released by {by}", by)
                told = {"pool": pool, "target": found.target, "message": f"{pool}: the autoscaler may act again"}
        answer: Answer = told
        return answer

    def _state(self) -> JsonObject:
        wishes, now = self._look(), time.time()
        load = wishes.get("load", 0.0)
        busy = load > 0
        pools: list[JsonObject] = [self._pool(pool, now, load) for pool in self.pools.values()]
        return {
            "now": now, "seen_s": wishes.get("seen_s", 0.3), "model": "storyteller", "mode": "disaggregated",
            "slo": {
                "ttft_s": 2.0, "tpot_s": 0.05, "attainment": 0.99, "requests_per_s": 9.4 * load,
                "ttft_attained": 1 - load / 50 if busy else None, "tpot_attained": 0.9994 if busy else None,
                "ttft_p50_s": 0.21 if busy else None, "ttft_p99_s": 0.3 + 2 * load if busy else None,
                "tpot_p50_s": 0.021 if busy else None, "tpot_p99_s": 0.043 if busy else None,
            },
            "npus": {"used": self._npus(), "offered": self.all_npus}, "ub_memory_mib": {"used": 2816, "offered": 8192},
            "nodes": [self._node(first, lost=wishes.get("lost_host")) for first in range(0, self.all_npus, PER_NODE)],
            "gateway": {
                "host": "0.0.0.0", "port": 8000, "running": round(60 * load), "queued": round(8 * load),
                "queued_tokens": round(14200 * load),
            },
            "autoscaler": {
                "policy": wishes.get("policy", "slo"), "alive": not wishes.get("lost"), "age_s": 0.4, "period_s": 1.0,
            },
            "pools": pools, "decisions": self._decisions[:50], "events": self._events[:50],
        }  # fmt: skip

    def _node(self, first: int, lost: str | None) -> JsonObject:
        name = _npu(first).partition(".")[0]
        return {
            "name": name, "address": f"10.77.0.{first // PER_NODE + 1}", "state": "dead" if name == lost else "alive",
            "lost_s": 74.0 if name == lost else None, "npus_used": 0,
            "npus": [_npu(number) for number in range(first, first + PER_NODE)],
            "ub_memory_mib": {"used": 1408, "offered": 4096},
        }  # fmt: skip

    def _scale(self, pool: str, replicas: int, hold_s: float | None, by: str) -> JsonObject:
        found = self._find(pool)
        fits = self._fits(found)
        if replicas > max(fits, found.target):
            message = f"{replicas} replicas of {pool} do not fit, {fits} would: {SHORTAGE}"
            raise ScaleError(message, kind="no_room", fits=fits)
        before, found.target = found.target, replicas
        self._hold(found, hold_s, by)
        self._note(pool, before, replicas, "held", f"asked for by {by}", by)
        left_s = max(0.0, found.held_until - time.time())
        return {
            "pool": pool, "before": before, "target": replicas, "fits": fits, "hold_left_s": left_s,
            "message": f"{pool}: {before} → {replicas}, held for {left_s / 60:.0f} minutes",
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, Any]:
        wishes: dict[str, Any] = json.loads(self._wishes.read_text()) if self._wishes.exists() else {}
        self.all_npus, self.each = SUPERNODE if wishes.get("supernode") else SMALL
        self.ranks = wishes.get("ranks", 0)
        if wishes.get("as_new"):
            self._begin()
        if wishes.get("silent"):
            raise ScaleError("the scaling board does not answer (TimeoutError); try again", kind="unavailable")
        for pool in self.pools.values():
            self._bury(pool, dead=pool.name in wishes.get("dead", ()))
            pool.settle(time.time(), wishes.get("start_s", 0.5), wishes.get("drain_s", 1.0))
        return wishes

    def _bury(self, pool: FakePool, *, dead: bool) -> None:
        """Make the pool's first replica dead, or replace the dead one."""
        if dead and not pool.dead:
            pool.dead = next(iter(pool.serves_at))
            self._happen(pool, "died", pool.dead, "connection lost; 12 streams moved, 1,340 tokens resumed")
        elif pool.dead and not dead:
            del pool.serves_at[pool.dead]
            pool.settle(time.time(), 0.0, 0.0)
            new = list(pool.serves_at)[-1]
            self._happen(pool, "replaced", new, f"serves in place of {pool.dead}, 3.1 s after the loss")
            self._happen(pool, "started", new, "serves 2.6 s after it was asked for")
            pool.dead = ""

    def _happen(self, pool: FakePool, kind: str, replica: str, text: str) -> None:
        entry: JsonObject = {"id": len(self._events) + 1, "at": time.time(), "kind": kind, "pool": pool.name}
        self._events.insert(0, {**entry, "replica": replica, "text": text, "streams": 0, "tokens": 0})

    def _find(self, pool: str) -> FakePool:
        self._look()
        if pool not in self.pools:
            raise ScaleError(f"there is no pool {pool!r}", kind="unknown_pool")
        return self.pools[pool]

    @staticmethod
    def _hold(pool: FakePool, hold_s: float | None, by: str) -> None:
        pool.held_until = time.time() + (MANUAL_HOLD_S if hold_s is None else hold_s)
        pool.held_by = by

    def _note(self, pool: str, before: int, target: int, kind: str, reason: str, by: str) -> None:
        entry: JsonObject = {"id": len(self._decisions) + 1, "at": time.time(), "pool": pool, "before": before}
        self._decisions.insert(0, {**entry, "target": target, "kind": kind, "reason": reason, "by": by})

    def _npus(self) -> int:
        return sum(len(pool.serves_at) * self.each[pool.name] for pool in self.pools.values())

    def _fits(self, pool: FakePool) -> int:
        each = self.each[pool.name]
        return len(pool.serves_at) + (self.all_npus - self._npus()) // each if each else 4

    def _placed(self, pool: str, at: int) -> list[str]:
        """NPUs of a replica: prefill fills the hardware from its end, so that pools do not overlap."""
        each = self.each[pool]
        numbers = range(at * each, (at + 1) * each)
        return [_npu(self.all_npus - 1 - number if pool == "prefill" else number) for number in numbers]

    def _ranks(self, pool: str, name: str, at: int, load: float) -> list[JsonObject]:
        """Make decode's replicas groups if configured."""
        npus, count = self._placed(pool, at), self.ranks if pool == "decode" else 0
        return [
            {
                "name": f"{name}.r{rank}", "state": "dead" if (at, rank) == (1, 1) else "serving", "pid": 5000 + rank,
                "npus": npus[rank::count], "hbm_used_bytes": None, "hbm_capacity_bytes": None,
                "sequences": round(load * 8), "queued_tokens": 0, "kv_fill": load * 0.5,
            }
            for rank in range(count)
        ]  # fmt: skip

    def _pool(self, pool: FakePool, now: float, load: float) -> JsonObject:
        cache = pool.name == "kvcache"
        replicas: list[JsonObject] = [
            {
                "name": name, "state": pool.state(name, now), "node": "n0", "pid": 4000 + at,
                "npus": self._placed(pool.name, at), "busy": load * (0.4 + 0.1 * at),
                "hbm_used_bytes": int(HBM_BYTES * 0.7), "hbm_capacity_bytes": HBM_BYTES,
                "sequences": 0 if cache else round(load * (17 + at)),
                "queued_tokens": 0 if cache else round(load * 900 * at), "kv_fill": load * (0.6 + 0.03 * at),
                "ranks": self._ranks(pool.name, name, at, load),
            }
            for at, name in enumerate(pool.serves_at)
        ]  # fmt: skip
        states = [replica["state"] for replica in replicas]
        left_s = pool.held_until - now
        return {
            "pool": pool.name, "kind": "cache" if cache else "engine", "target": pool.target,
            "running": states.count("serving"), "starting": states.count("starting"),
            "draining": states.count("draining"), "dead": states.count("dead"), "low": 1, "high": 8,
            "npus": len(replicas) * self.each[pool.name], "npus_per_instance": self.each[pool.name],
            "ub_memory_mib": 512 * len(replicas), "fits": self._fits(pool),
            "waits_s": self._look().get("waits_s"),
            "shortage": SHORTAGE if self._fits(pool) <= pool.target else None,
            "queued_tokens": 0 if cache else round(load * 14200), "sequences": 0 if cache else round(load * 57),
            "kv_fill": load * 0.63, "hit_rate": 0.362 if cache and load else None,
            "hold": {"left_s": left_s, "by": pool.held_by} if left_s > 0 else None, "replicas": replicas,
        }  # fmt: skip


def _npu(number: int) -> str:
    return f"n{number // PER_HOST}.npu{number % PER_HOST}"


def _history(now: float, load: float) -> list[dict[str, Any]]:
    """An hour with a wave and gaps in it."""
    return [
        {
            "at": now - 5 * back, "ttft_s": (0.9 + 0.8 * math.sin(back / 20)) * load if back % 50 > 4 else None,
            "tpot_s": 0.04 * load, "prompt_tokens_per_s": 9000 * load,
            "output_tokens_per_s": 700 * load * (1 + back % 7),
            "hit_rate": 0.3, "running": {"prefill": 2, "decode": 3 if back < 90 else 4, "kvcache": 1},
            "handed_off_bytes_per_s": 83e6 * load, "read_bytes_per_s": 2.1e9 * load, "written_bytes_per_s": 41e3 * load,
        }
        for back in range(719 if load else 0, 0, -1)
    ]  # fmt: skip
