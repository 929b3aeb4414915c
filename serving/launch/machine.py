"""Checks for free memory and a compiler on this machine, before any expensive start."""

import contextlib
import errno
import logging
import math
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hardware.units import GIB, MIB
from loadgen.server_address import temporary_folder
from serving.cluster.disk_watch import full_disk
from serving.config.checks import replicas_at_start
from serving.config.cluster import ClusterConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
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


# Checks whether a model's weights fit: on the dies of each pool's instances, and in this machine's memory.

_HBM_STEP_MIB = 64


def require_room(config: ServeConfig, weights: int, block: int, *, here: bool) -> None:
    """Require that the dies of each pool's instances hold the weights and one KV block.

    Args:
        weights: bytes of all weights, in the type used for computing.
        block: bytes of a KV block.
        here: whether the dies' memory is this machine's.
    Raises: ConfigError if they do not, with a sufficient die size; if this machine cannot hold the weights.
    """
    hardware, name = config.hardware, config.model.served_name
    enough = enough_mib(config, weights)
    if here and weights > machine_bytes():
        raise ConfigError(
            f"the weights of {name} take {weights / GIB:,.1f} GiB, and this machine has"
            f" {machine_bytes() / GIB:,.1f} GiB of memory: use a smaller model, one in INT8, or larger hosts"
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


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def enough_mib(config: ServeConfig, weights: int) -> int:
    """A die size with which every pool's instances hold the weights, and KV blocks in all their UB memory."""
    wanted = max(
        (weights / MIB + pool.ub_memory_mib) / pool.dies_per_instance / (1 - config.hardware.workspace_share)
        for pool in config.pools.values()
    )
    return math.ceil(wanted / _HBM_STEP_MIB) * _HBM_STEP_MIB


def _gib(mib: int) -> str:
    return f"{mib / 1024:,g}"


# Ports of this machine that a system will listen on. Does not import Ray.

GATEWAY_PORT = "[gateway] port or --port"
"""Setting named in the error."""
_ANY_DASHBOARD_PORT = "[cluster] dashboard_port (any free one: --set cluster.dashboard_port=0)"


def require_free(host: str, port: int, setting: str) -> None:
    """Check that a port is free now.

    Args:
        setting: the user's setting, for the error.

    Raises: ConfigError if it is in use, or this machine has no such address.
    """
    with _bound(host, port, setting):
        pass


def require_places(host: str, port: int, setting: str, cluster: ClusterConfig) -> None:
    """Check the ports, including the dashboard's, and the folder that a start on this machine needs.

    Args:
        setting: as `require_free`.
    Raises: ConfigError if a port is in use, the folder of starts is not writable, or its disk is full.
    """
    if 0 < port < 1 << 16:  # otherwise its range is the error
        require_free(host, port, setting)
    if cluster.dashboard_port:
        require_free(cluster.dashboard_host, cluster.dashboard_port, _ANY_DASHBOARD_PORT)
    folder = temporary_folder()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{folder} is not writable, but the launcher needs a folder there: set TMPDIR to a writable folder"
        )
    if (line := full_disk(folder)) is not None:
        raise ConfigError(line)


def any_free_port(host: str) -> int:
    """An unused port, chosen by the kernel from thousands, usually a different one each time.

    Raises: OSError if this machine has no such address.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def reserved_port(host: str, port: int, setting: str) -> Iterator[None]:
    """Reserve a port for this user's processes that share it (SO_REUSEPORT), as gateways and Serve's proxy do.

    Ray's processes take dozens of free ports while no gateway listens, before its start or after its death. The kernel
    does not hand out a bound port; connections reach only listening sockets, and this one does not listen.

    Raises: ConfigError as `require_free`.
    """
    with _bound(host, port, setting) as sock:
        # Not before: bound as shared, it would not have detected another system that shares its port in the same way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield


@contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore closed connections of an earlier listener
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use: stop the process that listens there, or set {setting}"
                ) from error
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): set {setting}") from error
        yield sock
