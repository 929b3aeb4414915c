"""What counts as at rest, and what is left behind."""

import dataclasses
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hardware.ub import UbSegment
from serving.gateway.live.status import cluster_status
from serving.ids import NodeId, ReplicaId
from serving.tools.chaos import audit
from serving.tools.chaos.audit import REPLICA_COUNTS, busy, look_for_leaks
from serving.tools.chaos.machines import ThisMachine
from serving.tools.chaos.result import Leaks
from tests.instance.bench import Bench, spec
from tests.live.harness import Member, small_config


def status(**changes: int) -> dict[str, Any]:
    replica = {"replica": "decode#1", "pid": 11, **dict.fromkeys(REPLICA_COUNTS, 0), "kv_blocks_cached": 7, **changes}
    server = {"name": "kvcache-0", "pid": 12, "in_use": {"leased": changes.get("leased", 0), "writing": 0}}
    return {
        "gateway": {"running": changes.get("gateway", 0), "queued": 0},
        "pools": [{"name": "decode", "target_replicas": 1, "replicas": [replica]}],
        "kvcache": {"target_replicas": 1, "servers": [server]},
    }


def test_whatever_place_a_sequence_is_in_the_audit_sees_it() -> None:
    """It did not see those that were being fetched from the KV-cache pool."""
    bench = Bench(pool=True)
    bench.engine.add(spec("a"), 0.0)
    bench.begin()
    facts = {"pid": 1, "npus": [], **dataclasses.asdict(bench.engine.snapshot(0.0))}
    member = Member(ReplicaId("aggregated#1"), "aggregated", NodeId("n"), "h", 1, facts=facts)
    config = small_config(Path("/nowhere"), mode="aggregated")
    left = busy(cluster_status(config, [member], {"running": 0}, targets={"aggregated": 1}))
    inside = {"fetching": 1, "queued_tokens": 10, "kv_blocks_used": 3}
    assert left == {f"aggregated#1 {name}": count for name, count in inside.items()}


def test_at_rest_nothing_is_busy_and_every_count_is_looked_at() -> None:
    assert busy(status()) == {}
    for name in REPLICA_COUNTS:
        assert busy(status(**{name: 2})) == {f"decode#1 {name}": 2}
    assert busy(status(gateway=1)) == {"gateway running": 1}
    assert busy(status(leased=3)) == {"kvcache-0 entries leased": 3}
    without = status()
    del without["kvcache"]
    assert busy(without) == {}


def test_a_pool_or_group_that_lacks_somebody_is_not_at_rest() -> None:
    lacking = status()
    lacking["pools"][0]["target_replicas"] = 3
    lacking["kvcache"]["servers"] = []
    assert busy(lacking) == {"decode replicas missing": 2, "kvcache replicas missing": 1}

    lacking = status()
    (one,) = lacking["pools"][0]["replicas"]
    one |= {"replica": "decode#1.r0", "group": "decode#1", "rank": 0, "ranks": 2}
    assert busy(lacking) == {"decode replicas missing": 1}
    lacking["pools"][0]["replicas"].append({**one, "replica": "decode#1.r1", "rank": 1, "pid": 13})
    assert busy(lacking) == {}


class Pool:
    """A gateway that answers with what a test sets."""

    def __init__(self) -> None:
        self.status = status()
        self.problems: list[str] = []
        self.silent: list[str] = []
        self.repair: list[bool] = []

    def ask(self, _url: str, path: str, *_: object, body: Any = None, **_named: object) -> dict[str, Any]:
        if path == "/cluster":
            return self.status
        self.repair.append(body["repair"])
        servers = self.status["kvcache"]["servers"]
        return {"silent": self.silent, "servers": {one["name"]: {"problems": self.problems} for one in servers}}

    def leaks(self, bits: int) -> Leaks:
        return look_for_leaks("url", None, ThisMachine(secrets.token_hex(6)), [], 0.0, bits=bits)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool()
    monkeypatch.setattr(audit, "ask_gateway", made.ask)
    monkeypatch.setattr(audit, "_ANNOUNCED_S", 0.0)
    return made


def test_only_so_many_wrong_blocks_are_excused_as_bits_were_turned(pool: Pool) -> None:
    pool.problems = [f"block {i}: wrong bytes in memory" for i in range(5)]
    found = pool.leaks(bits=2)
    assert found.repaired_flips == 2
    assert len(found.pool) == 3
    assert len(pool.leaks(bits=0).pool) == 5
    assert pool.repair == [True, False]
    pool.problems = ["block 1: two owners"]
    assert pool.leaks(bits=2).pool == ["kvcache-0: block 1: two owners"]


def test_a_memory_server_that_is_not_there_is_not_audited_and_told(pool: Pool) -> None:
    pool.status["kvcache"]["target_replicas"] = 3
    found = pool.leaks(bits=0)
    assert found.pool == ["KV-cache pool: 2 of 3 memory servers are not there to be audited"]
    assert found.counts == {"kvcache replicas missing": 2}
    pool.silent = ["kvcache-1", "kvcache-2"]
    assert pool.leaks(bits=0).pool == [f"KV-cache pool: kvcache-{n} did not answer the audit" for n in (1, 2)]


def test_a_dead_owners_segment_is_nobodys_even_if_somebody_maps_it(pool: Pool) -> None:
    session = secrets.token_hex(6)
    of_dead = Path(f"/dev/shm/cloudmatrix-ub-{session}-n-prefill-killed")
    of_living = Path(f"/dev/shm/cloudmatrix-ub-{session}-n-decode-1")
    make = f"from hardware.ub import *; UbSegment.create({str(of_dead)!r}, 1 << 16); import os; os._exit(0)"
    subprocess.run([sys.executable, "-c", make], check=True)
    hold = (
        "import mmap, sys, time; files = [open(path, 'r+b') for path in sys.argv[1:]]; "
        "kept = [mmap.mmap(file.fileno(), 4096) for file in files]; print('up', flush=True); time.sleep(60)"
    )
    with UbSegment.create(of_living, 1 << 16) as segment:
        command = ["ray::ServeReplica:x", "-c", hold, str(of_dead), str(of_living)]
        process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert ThisMachine(session).orphans() == [of_dead.name]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            of_dead.unlink()
            segment.remove()
