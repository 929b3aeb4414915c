"""Targets of signals: replicas and ranks listed by `GET /cluster`, checked against the machine's processes."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.errors import HardwareError
from hardware.faults import FaultUnits
from hardware.ub.file import read_header
from serving.errors import UnavailableError
from serving.faults.injected import session_of
from serving.faults.scenario import RANKS
from serving.faults.schedule import units_with
from serving.values.group import RankRole
from serving.values.instances import whole_replicas

SHARED_MEMORY = Path("/dev/shm")
PROC = Path("/proc")
_SEGMENT = re.compile(r"/dev/shm/(cloudmatrix-ub-[0-9a-f]+-\S+)")
_TITLES = (b"ray::ServeReplica:", b"ray::RankActor")


@dataclass(frozen=True, slots=True)
class Target:
    """One replica: its place in the system, and its process.

    Args:
        started: start of the process, in the kernel's ticks: distinguishes it from a later one with the same number.
        host: its host; empty = this machine.
    """

    pool: str
    name: str
    pid: int
    started: int
    host: str = ""

    @property
    def process(self) -> tuple[str, int]:
        """Host and number of its process, since numbers of several hosts may be equal."""
        return self.host, self.pid


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """One replica as listed by `GET /cluster`. `node`: Ray's name of its node."""

    pool: str
    name: str
    pid: int
    node: str = ""


def rows_of(status: dict[str, Any]) -> list[ListedProcess]:
    """Every replica listed by `GET /cluster`."""
    found = [
        ListedProcess(pool["name"], replica["replica"], int(replica["pid"] or 0), replica.get("node", ""))
        for pool in status["pools"]
        for replica in pool["replicas"]
    ]
    servers = status.get("kvcache", {}).get("servers", ())
    found += [ListedProcess("kvcache", one["name"], int(one["pid"] or 0), one.get("node", "")) for one in servers]
    return [row for row in found if row.pid]


def ranks_by_kind(status: dict[str, Any]) -> dict[str, str]:
    """`attention_rank` or `expert_rank`, by the name of each rank that `GET /cluster` lists as one or the other."""
    rows = [replica for pool in status.get("pools", ()) for replica in pool["replicas"]]
    return {
        row["replica"]: kind
        for row in rows
        for kind, role in zip(RANKS, (RankRole.ATTENTION, RankRole.EXPERTS), strict=True)
        if row.get("role") == role.value
    }


def listed(status: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Pool, name and process id of every replica listed by `GET /cluster`."""
    return [(row.pool, row.name, row.pid) for row in rows_of(status)]


def sizes(status: dict[str, Any]) -> dict[str, int]:
    """Replicas that each pool should have."""
    targets = {pool["name"]: int(pool["target_replicas"]) for pool in status["pools"]}
    if "kvcache" in status:
        targets["kvcache"] = int(status["kvcache"]["target_replicas"])
    return targets


def units_at(status: dict[str, Any]) -> FaultUnits:
    """Units and processes of the system that `GET /cluster` reports."""
    return units_with(sizes(status), int(status.get("gateways", 1)))


def there(status: dict[str, Any]) -> dict[str, int]:
    """Replicas of each pool in `GET /cluster`: a group counts as one as soon as all its ranks are listed."""
    counts = {pool["name"]: whole_replicas(row for row in pool["replicas"] if row["pid"]) for pool in status["pools"]}
    if "kvcache" in status:
        counts["kvcache"] = sum(bool(server["pid"]) for server in status["kvcache"]["servers"])
    return counts


def find_session(status: dict[str, Any]) -> str:
    """Session of the system, by the UB segments that its replicas map.

    Raises: UnavailableError if its replicas are not processes of this machine and user.
    """
    for _, _, pid in listed(status):
        for name in mapped_segments(pid):
            session = session_of(name)
            if session:
                return session
    raise UnavailableError(
        "its replicas are no processes of this user on this machine; one on several hosts is reached with --address"
    )


def target_of(pool: str, name: str, pid: int, session: str) -> Target | None:
    """A replica as a target; None unless its process is a replica of that session, and this user's."""
    try:
        title = (PROC / str(pid) / "cmdline").read_bytes()
        if (PROC / str(pid)).stat().st_uid != os.geteuid() or not title.startswith(_TITLES):
            return None
        if session not in {session_of(segment) for segment in mapped_segments(pid)}:
            return None
    except OSError:
        return None
    started = start_ticks(pid)
    return None if started is None else Target(pool, name, pid, started)


def mapped_segments(pid: int) -> set[str]:
    """File names of the UB segments that a process maps; empty if it has ended or is another user's."""
    try:
        return set(_SEGMENT.findall((PROC / str(pid) / "maps").read_text()))
    except OSError:
        return set()


def start_ticks(pid: int) -> int | None:
    """Start of a process; None if there is none, or only its zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def alive(target: Target) -> bool:
    """Whether this exact process still exists."""
    return start_ticks(target.pid) == target.started


def send(target: Target, kind: signal.Signals) -> bool:
    """Signal a replica. Returns: False if its process has ended. Effects: the signal."""
    if not alive(target):
        return False
    with suppress(ProcessLookupError):
        os.kill(target.pid, kind)
        return True
    return False


def replica_processes(session: str) -> Iterator[int]:
    """Running replicas of a session, listed or not."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and target_of("", "", int(entry.name), session) is not None:
            yield int(entry.name)


def belongs_to_dead(segment: str) -> bool:
    """Whether the process that created a UB segment is dead; False if the file does not record it."""
    path = SHARED_MEMORY / segment
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        header = read_header(fd, path)
    except (OSError, HardwareError):
        return False
    finally:
        os.close(fd)
    return header is not None and not header.owner.is_alive()


def segments(session: str) -> list[str]:
    """UB segments of a session, by file name."""
    return sorted(path.name for path in SHARED_MEMORY.glob(f"cloudmatrix-ub-{session}-*"))
