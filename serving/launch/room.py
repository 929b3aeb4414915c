"""Whether a model's weights fit: on the dies of each pool's instances, and into this machine's memory."""

import contextlib
import math
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hardware.units import GIB, MIB
from serving.config.checks import replicas_at_start
from serving.config.serve import ServeConfig
from serving.errors import ConfigError

_HBM_STEP_MIB = 64
_PROCESSES_BYTES = 2 * GIB
"""Ray, a gateway and the replicas of `small.toml` without UB memory and weights."""
_SHARED_MEMORY = Path("/dev/shm")
_CGROUP = Path("/sys/fs/cgroup")


def require_room(config: ServeConfig, weights: int, block: int, *, here: bool) -> None:
    """Look whether the dies of each pool's instances hold the weights and a KV block each.

    Args:
        weights: bytes of all weights, in the type that they are computed in.
        block: bytes of a KV block.
        here: the dies' memory is this machine's.
    Raises: ConfigError if they do not, with the size of die that would do; if this machine cannot hold the weights.
    Effects: none.
    """
    hardware, name = config.hardware, config.model.served_name
    enough = _enough_mib(config, weights)
    if here and weights > machine_bytes():
        raise ConfigError(
            f"the weights of {name} take {weights / GIB:,.1f} GiB, and this machine has"
            f" {machine_bytes() / GIB:,.1f} GiB of memory: take a smaller model, one in INT8, or larger hosts"
            f" (--address) with dies of {_gib(enough)} GiB"
        )
    usable = hardware.hbm_per_die_bytes * (1 - hardware.workspace_share)
    for pool_name, pool in config.pools.items():
        dies = pool.dies_per_instance
        if -(-weights // dies) + block > usable:
            raise ConfigError(
                f"the weights of {name} take {weights / GIB:,.3g} GiB, and an instance of the {pool_name} pool has"
                f" {dies} dies of {hardware.hbm_per_die_bytes / GIB:,.3g} GiB; with dies of {_gib(enough)} GiB they"
                f" fit: add --set hardware.hbm_per_die_mib={enough}, or raise [{pool_name}] npus_per_instance"
            )


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory of this machine that is free [bytes]: in all, and in /dev/shm."""

    total: int
    shared: int


def free_memory() -> FreeMemory:
    """Free memory here, by the kernel's count, and by the container's limit where that is less."""
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    total = machine_bytes() if available is None else int(available[1]) << 10
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        used = re.findall(r"^(?:anon|shmem) (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        total = min(total, int((_CGROUP / "memory.max").read_text()) - sum(map(int, used)))
    return FreeMemory(total, shutil.disk_usage(_SHARED_MEMORY).free)


def tight_lines(config: ServeConfig, weights: int, free: FreeMemory) -> list[str]:
    """Lines about memory that a start on this machine is short of, with the way out.

    Args:
        weights: bytes of the model's weights; 0 where none are computed with.
    Effects: none.
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
            f" {wanted / GIB:,.1f} GiB: the kernel may kill a part of it; end other programs, or take fewer replicas,"
            " less ub_memory_mib or a smaller model"
        )
    return lines


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _enough_mib(config: ServeConfig, weights: int) -> int:
    """A size of die with which every pool's instances hold the weights, and KV blocks in all their UB memory."""
    wanted = max(
        (weights / MIB + pool.ub_memory_mib) / pool.dies_per_instance / (1 - config.hardware.workspace_share)
        for pool in config.pools.values()
    )
    return math.ceil(wanted / _HBM_STEP_MIB) * _HBM_STEP_MIB


def _gib(mib: int) -> str:
    return f"{mib / 1024:,g}"
