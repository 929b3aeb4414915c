"""Detection of idle systems, and of leaks."""

import dataclasses
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hardware.ub import UbSegment
from serving.errors import UnavailableError
from serving.gateway.live.status import cluster_status
from serving.ids import NodeId, ReplicaId
from serving.tools.chaos import final_audit
from serving.tools.chaos.chaos_result import Leaks
from serving.tools.chaos.final_audit import REPLICA_COUNTS, busy, look_for_leaks
from serving.tools.chaos.machines import ThisMachine
from serving.tools.chaos.own_system import OwnSystem, keep_logs, left_after
from serving.tools.chaos.targets import start_ticks
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
    """It missed those that were being fetched from the KV-cache pool."""
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
    """A gateway with scripted responses."""

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
    monkeypatch.setattr(final_audit, "ask_gateway", made.ask)
    monkeypatch.setattr(final_audit, "_ANNOUNCED_S", 0.0)
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


CONFIG = """
[model]
path = "{folder}/no-model"
"""


def test_a_start_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    config = tmp_path / "system.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    before = set(Path(tempfile.gettempdir()).glob("cloudmatrix-chaos-*"))
    with pytest.raises(UnavailableError, match=r"did not start: .*no model folder"), OwnSystem(config):
        pass
    assert set(Path(tempfile.gettempdir()).glob("cloudmatrix-chaos-*")) <= before, "its output has gone"


def test_what_is_left_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.cluster.session.temporary_folder", lambda: tmp_path)
    session = secrets.token_hex(6)
    segment = Path(f"/dev/shm/cloudmatrix-ub-{session}-node-decode-1")
    segment.touch()
    try:
        (tmp_path / f"cloudmatrix-{session}").mkdir()
        told = left_after(session, 0.1)
    finally:
        segment.unlink()
    assert [line for line in told if segment.name in line]
    assert [line for line in told if "folder" in line]

    assert left_after(secrets.token_hex(6)) == []

    logs = tmp_path / "cloudmatrix-abc" / "ray" / "session_latest" / "logs" / "serve"
    logs.mkdir(parents=True)
    (logs / "replica.log").write_text("why")
    keep_logs("abc", tmp_path / "out")
    assert (tmp_path / "out" / "replica.log").read_text() == "why"
    keep_logs("none", tmp_path / "other")
    assert not (tmp_path / "other").exists()


CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_whoever_does_not_go_is_killed_and_told(interrupted: bool) -> None:
    system = OwnSystem(Path("system.toml"), stop_s=30.0 if interrupted else 0.3)
    system._process = process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    process.stdout.close()
    if interrupted:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            system.stop()
        signal.signal(signal.SIGINT, before)
    else:
        system.stop()
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while start_ticks(grandchild) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_ticks(grandchild) is None
    assert system.left == [f"after the end: process {pid} of the system" for pid in (process.pid, grandchild)]
