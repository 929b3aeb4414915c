"""Checks for free memory and a compiler on this machine, before any expensive start."""

import contextlib
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hardware.units import GIB, MIB
from serving.config.checks import replicas_at_start
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch.room import machine_bytes
from serving.model.native.build import BuildError, find_compiler, packaged_library

logger = logging.getLogger(__name__)

_PROCESSES_BYTES = 2 * GIB
"""Ray, a gateway and the replicas of `small.toml` without UB memory and weights."""
_SHARED_MEMORY = Path("/dev/shm")
_CGROUP = Path("/sys/fs/cgroup")


def warn_of_machine(config: ServeConfig) -> None:
    """Log what this machine lacks for speed or for a start at all, regardless of the model's weights.

    Raises: ConfigError if the configuration requires the native step and no compiler is installed.
    """
    for line in tight_lines(config, 0, free_memory()):
        logger.warning("%s", line)
    if (remedy := compiler_line(config)) is not None:
        if config.engine.executor == "native":
            raise ConfigError(f'[engine] executor = "native": {remedy}')
        logger.warning("%s, so torch computes, several times slower than the native step", remedy)


def warn_of_weights(config: ServeConfig, weights: int) -> None:
    """Log that memory is short with the weights, unless it is short without them, which has been logged already."""
    free = free_memory()
    if not tight_lines(config, 0, free):
        for line in tight_lines(config, weights, free):
            logger.warning("%s", line)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory of this machine [bytes]: in total, and in /dev/shm."""

    total: int
    shared: int


def free_memory() -> FreeMemory:
    """Free memory of this machine, by the kernel's count, or by the container's limit if that is less."""
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    total = machine_bytes() if available is None else int(available[1]) << 10
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        used = re.findall(r"^(?:anon|shmem) (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        total = min(total, int((_CGROUP / "memory.max").read_text()) - sum(map(int, used)))
    return FreeMemory(total, shutil.disk_usage(_SHARED_MEMORY).free)


def tight_lines(config: ServeConfig, weights: int, free: FreeMemory) -> list[str]:
    """Lines about memory that a start on this machine lacks, with the remedy.

    Args:
        weights: bytes of the model's weights; 0 without real weights.
    """
    shared = sum(need.replicas * need.memory_mib for need in replicas_at_start(config)) * MIB
    wanted = _PROCESSES_BYTES + shared + weights
    lines = []
    if shared > free.shared:
        lines.append(
            f"/dev/shm has {free.shared / MIB:,.0f} MiB free, and the pools start with {shared / MIB:,.0f} MiB of UB"
            " memory there: make it larger (`mount -o remount,size=2G /dev/shm`, in a container --shm-size 2g), or"
            " lower ub_memory_mib of the pools"
        )
    if wanted > free.total:
        lines.append(
            f"this machine has {free.total / GIB:,.1f} GiB of memory free, and this start takes about"
            f" {wanted / GIB:,.1f} GiB: the kernel may kill some of its processes; stop other programs, or use"
            " fewer replicas, less ub_memory_mib or a smaller model"
        )
    return lines


def compiler_line(config: ServeConfig) -> str | None:
    """Remedy for a missing C++ compiler; None if none is needed, or one is installed."""
    if config.engine.executor in ("simulated", "torch") or config.model.device not in ("auto", "cpu"):
        return None
    if packaged_library().exists() or (config.model.device == "auto" and Path("/dev/nvidiactl").exists()):
        return None
    try:
        find_compiler()
    except BuildError as error:
        return f"{error}: install one (Debian: apt-get install g++, Fedora: dnf install gcc-c++)"
    return None
