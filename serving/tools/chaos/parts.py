"""Processes outside the pools that a system needs: targets of `kill_part`, found by the machine's process list.

Ray's own processes name the session's folder in their command line; processes with a title of Ray's instead of a
command line are descendants of one that does.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from serving.tools.chaos.targets import PROC, Target, mapped_segments, start_ticks

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
_ENGINE = re.compile(r"ray::ServeReplica:\w+:(?:prefill|decode|aggregated)\b")
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
