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
    used_s: dict[int, float] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended since
                fields = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()
                used_s[int(entry.name)] = sum(map(int, fields[11:15])) * _TICK_S  # utime, stime, cutime, cstime
                children[int(fields[1])].append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is read
        found.extend(children[pid])
    by_role: defaultdict[str, float] = defaultdict(float)
    for pid in found:
        by_role[LAUNCHER if pid == root else _role(pid)] += used_s.get(pid, 0.0)
    return dict(by_role)


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
