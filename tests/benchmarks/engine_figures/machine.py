"""The machine's part: which cores, which instruction sets."""

import os
from pathlib import Path

_TOLD = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def pin(threads: int) -> None:
    """Hold this process, and all that it starts from now on, to its first `threads` cores.

    Raises: ValueError if there are fewer.
    Effects: on this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 0 < threads <= len(cores):
        raise ValueError(f"{threads} threads were asked for, and {len(cores)} cores are there")
    os.sched_setaffinity(0, cores[:threads])


def instruction_sets(cpuinfo: str | None = None) -> str:
    """Those of the sets that matter to these engines which the processor has.

    Args:
        cpuinfo: text of /proc/cpuinfo; None = this machine's.
    """
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text() if path.exists() else ""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    return " ".join(name for name in _TOLD if name in flags) or "unknown"
