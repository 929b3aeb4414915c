"""Identity of the process that holds a resource, and whether it still runs.

A process number alone is reused; together with the start time that the kernel keeps it names one process for as long as
the machine is up. Linux only.
"""

import os
from dataclasses import dataclass
from functools import cache

_START_TIME_FIELD = 21  # `man 5 proc_pid_stat`: field 22, counted from 1
_STATE_FIELD = 2
_DEAD_STATES = frozenset(b"ZXx")  # a zombie has given back its memory and will not come back


@dataclass(frozen=True, slots=True)
class ProcessStamp:
    """One process, without doubt.

    Attributes:
        pid: its number.
        start_ticks: when it started, in clock ticks since boot.
        pid_namespace: the namespace that the number belongs to (containers that share memory may not share it).
    """

    pid: int
    start_ticks: int
    pid_namespace: int

    @classmethod
    def of(cls, pid: int) -> "ProcessStamp | None":
        """The stamp of a living process of this namespace; None if there is none."""
        fields = _stat_fields(pid)
        if fields is None:
            return None
        return cls(pid, int(fields[_START_TIME_FIELD]), _own_namespace())

    @classmethod
    def own(cls) -> "ProcessStamp":
        """The stamp of this process."""
        return _own_stamp(os.getpid())

    def is_alive(self) -> bool:
        """Whether the process still runs.

        A process of another namespace is invisible and counts as alive, so its resources are not reclaimed.
        """
        return self.pid_namespace != _own_namespace() or ProcessStamp.of(self.pid) == self


@cache
def _own_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


@cache
def _own_stamp(pid: int) -> ProcessStamp:
    stamp = ProcessStamp.of(pid)  # keyed by pid: a forked child must not inherit its parent's stamp
    assert stamp is not None, "this process has no entry in /proc"
    return stamp


def _stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/<pid>/stat, or None for a process that has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may contain spaces and parentheses.
    name_end = text.rindex(b")")
    fields = [b"pid", b"name", *text[name_end + 1 :].split()]
    return None if fields[_STATE_FIELD][0] in _DEAD_STATES else fields
