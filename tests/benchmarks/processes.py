"""CPU time of a process and its descendants, by role, from /proc.

Includes user and system time of the living, and of their ended children. Ticks are 10 ms, so windows must be
seconds long.
"""

import contextlib
import os
from collections import defaultdict
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
DAEMONS, LAUNCHER, CONTROLLER, PROXY = "Ray's daemons", "launcher", "Serve's controller", "Serve's proxy"
OF_RAY = frozenset({DAEMONS, CONTROLLER, PROXY})
"""Roles of processes that run none of our code."""
_KNOWN = {
    "ServeController": CONTROLLER,
    "ProxyActor": PROXY,
    "MembershipActor": "membership",
    "PoolControlActor": "pool control",
    "ScalingBoardActor": "scaling board",
}
_PARTS = {"agent_keeper.py": LAUNCHER, "reaper.py": LAUNCHER, "ray-dashboard-PoolsHead": "page /pools"}


def cpu_by_role(root: int) -> dict[str, float]:
    """CPU seconds used so far below `root`, by role: the pools and the gateway by name, Ray's own processes
    together.
    """
    by_role: defaultdict[str, float] = defaultdict(float)
    for pid, fields in _below(root).items():
        used_s = sum(map(int, fields[11:15])) * _TICK_S  # utime, stime, cutime, cstime
        by_role[LAUNCHER if pid == root else _role(pid)] += used_s
    return dict(by_role)


def pss_by_role(root: int) -> dict[str, float]:
    """Proportional set size [MiB] below `root`, by role: a page that several processes map is counted once in all."""
    by_role: defaultdict[str, float] = defaultdict(float)
    for pid in _below(root):
        with contextlib.suppress(OSError, StopIteration):  # it has ended since
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            by_role[LAUNCHER if pid == root else _role(pid)] += kib / 1024
    return dict(by_role)


def _below(root: int) -> dict[int, list[str]]:
    """A process and its descendants, with the fields of /proc/PID/stat after the name."""
    fields: dict[int, list[str]] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended since
                fields[int(entry.name)] = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()
                children[int(fields[int(entry.name)][1])].append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is read
        found.extend(children[pid])
    return {pid: fields[pid] for pid in found if pid in fields}


def _role(pid: int) -> str:
    """Role of a process: Ray names its workers `ray::ServeReplica:application:deployment`, and its own programs
    otherwise.
    """
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return DAEMONS
    name = title.removeprefix("ray::").split(".")[0].split()[0] if title.startswith("ray::") else ""
    if name.startswith("ServeReplica:"):
        return name.rpartition(":")[2]
    return _KNOWN.get(name) or next((role for part, role in _PARTS.items() if part in title), DAEMONS)
