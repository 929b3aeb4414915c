"""Machines whose processes a run inspects and injures: this one, or every host of a cluster.

watch, injector, audit ──► Machines ──► ThisMachine                       processes of this machine, by /proc
                                 └──► Hosts (`host_agents.py`) ──► an agent on each host, which has a ThisMachine
"""

import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol

from msgspec import structs

from serving.faults.injected import FaultWriter, InjectedFault, faults_path
from serving.tools.chaos.targets import (
    PROC,
    SHARED_MEMORY,
    ListedProcess,
    Target,
    alive,
    belongs_to_dead,
    find_session,
    mapped_segments,
    replica_processes,
    rows_of,
    segments,
    send,
    start_ticks,
    target_of,
)
from serving.values.pool_kinds import ENGINE_POOLS


class Machines(Protocol):
    """Processes of one session of the system. Calls may block until a host has responded."""

    @property
    def session(self) -> str:
        """Session of the system."""

    def look(self, status: dict[str, Any]) -> list[Target]:
        """Living replicas among those listed by `GET /cluster`."""

    def parts(self) -> list[Target]:
        """Processes outside the pools."""

    def alive(self, target: Target) -> bool:
        """Whether this exact process existed at the last poll."""

    def send(self, target: Target, kind: signal.Signals) -> bool:
        """Signal a process. Returns: False if it has ended or is unreachable."""

    def inject(self, target: Target, fault: InjectedFault, lasts_s: float) -> None:
        """Make a replica apply a fault to itself for this long, by its host's clock, whatever end the fault has.

        Raises: ConfigError if replicas would not see it.
        """

    def clear(self) -> None:
        """End all faults inside replicas."""

    def strays(self, known: Iterable[tuple[str, int]]) -> list[str]:
        """Running replicas that are not among these, by host and process."""

    def orphans(self) -> list[str]:
        """Segments that no living replica maps, or whose owner is dead: a process may still map what it pulled from."""


class ThisMachine:
    """Implements `Machines` by /proc.

    Args:
        session: of the system.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self._faults = FaultWriter(faults_path(SHARED_MEMORY, session))
        self._known: dict[int, Target] = {}

    @classmethod
    def of(cls, status: dict[str, Any]) -> "ThisMachine":
        """The machine of a system. Raises: UnavailableError if that is not this one."""
        return cls(find_session(status))

    def look(self, status: dict[str, Any]) -> list[Target]:
        """Implements `Machines.look`."""
        return self.check(rows_of(status))

    def check(self, rows: Iterable[ListedProcess]) -> list[Target]:
        """Living replicas among these; a checked process is not checked again while it lives."""
        found = [self._checked(row) for row in rows]
        self._known = {target.pid: target for target in found if target is not None}
        return list(self._known.values())

    def _checked(self, row: ListedProcess) -> Target | None:
        known = self._known.get(row.pid)
        if known is not None and (known.pool, known.name) == (row.pool, row.name) and alive(known):
            return known
        return target_of(row.pool, row.name, row.pid, self.session)

    def parts(self) -> list[Target]:
        """Implements `Machines.parts`."""
        return find_parts(self.session)

    def alive(self, target: Target) -> bool:
        """Implements `Machines.alive`; checks now."""
        return alive(target)

    def send(self, target: Target, kind: signal.Signals) -> bool:
        """Implements `Machines.send`."""
        return send(target, kind)

    def inject(self, target: Target, fault: InjectedFault, lasts_s: float) -> None:
        """Implements `Machines.inject`."""
        self._faults.add(structs.replace(fault, until_s=time.monotonic() + lasts_s))

    def clear(self) -> None:
        """Implements `Machines.clear`."""
        self._faults.clear()

    def strays(self, known: Iterable[tuple[str, int]]) -> list[str]:
        """Implements `Machines.strays`."""
        here = {pid for _, pid in known}
        return [f"replica process {pid} is not listed" for pid in replica_processes(self.session) if pid not in here]

    def orphans(self) -> list[str]:
        """Implements `Machines.orphans`."""
        mapped = {name for pid in replica_processes(self.session) for name in mapped_segments(pid)}
        return [name for name in segments(self.session) if name not in mapped or belongs_to_dead(name)]


# Processes outside the pools that a system needs: targets of `kill_part`, found by the machine's process list.
#
# Ray's own processes name the session's folder in their command line; processes with a title of Ray's instead of a
# command line are descendants of one that does.

TITLES = {
    "ray::DashboardAgent": "agents",
    "ray::RuntimeEnvAgent": "agents",
    "ray::ServeController": "controller",
    "ray::ScalingBoardActor": "board",
    "ray::PoolControlActor": "pool_control",
    "ray::MembershipActor": "membership",
}
"""Starts of the titles of parts."""
PROGRAMS = {
    "gcs_server": "gcs",
    "raylet": "node",
    "dashboard.py": "dashboard",
    "log_monitor.py": "monitors",
    "monitor.py": "monitors",
    "reaper.py": "reaper",
}
"""Parts that have a command line: its program, or what Python runs."""
_ENGINE = re.compile(rf"ray::ServeReplica:\w+:(?:{'|'.join(ENGINE_POOLS)})\b")
_GATEWAY = re.compile(r"ray::ServeReplica:\w+:gateway\b")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this user, as /proc describes it."""

    pid: int
    parent: int
    line: str


def find_parts(session: str) -> list[Target]:
    """Every process of a session that is a part. Effects: reads all processes of this user."""
    found = []
    for process in of_session(_processes(), session):
        part = part_of(process.line)
        if _ENGINE.match(process.line) and not mapped_segments(process.pid):
            part = "shell"  # an instance without ranks maps its KV blocks
        started = start_ticks(process.pid) if part is not None else None
        if part is not None and started is not None:
            found.append(Target(part, f"{part}#{process.pid}", process.pid, started))
    return found


def part_of(line: str) -> str | None:
    """Which part a process is, by its title or command line; None if none."""
    if _GATEWAY.match(line):
        return "gateway"
    for title, part in TITLES.items():
        if line.startswith(title):
            return part
    program, *arguments = line.split(maxsplit=4) or [""]
    script = next((argument for argument in arguments if not argument.startswith("-")), "")
    named = PurePath(script if script.endswith(".py") else program).name
    return PROGRAMS.get(named)


def of_session(processes: Iterable[Process], session: str) -> list[Process]:
    """Processes that name the session's folder, and their descendants."""
    table = list(processes)
    mark = f"cloudmatrix-{session}/"
    known = {process.pid for process in table if mark in process.line and not process.line.startswith("ray::")}
    grown = True
    while grown:
        more = {process.pid for process in table if process.parent in known} - known
        known |= more
        grown = bool(more)
    return [process for process in table if process.pid in known]


def _processes() -> Iterable[Process]:
    for entry in PROC.iterdir():
        with suppress(OSError):  # it has ended since
            if not entry.name.isdigit() or entry.stat().st_uid != os.geteuid():
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            yield Process(int(entry.name), parent, line)
