"""`cloudmatrix doctor` without a Ray: what this machine offers to a start, with a remedy for what is short."""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hardware.units import GIB, MIB
from loadgen.server_address import temporary_folder
from serving.cluster.disk_watch import full_disk
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch.machine import GATEWAY_PORT, compiler_line, free_memory, require_free, require_places, tight_lines
from serving.model.native.build import BuildError, find_compiler, packaged_library

_SETS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "asimd", "bf16", "i8mm")
"""Flags of the kernel for instruction sets that the native step can use."""
_LEAST_FILES = 4096
"""Descriptors: Ray opens some hundred in each of its parts."""
_LEAST_DISK = 2 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        remedy: what to do; empty = it is fine.
    """

    name: str
    found: str
    remedy: str = ""


def findings(config: ServeConfig) -> list[Finding]:
    """Every finding about this machine.

    Args:
        config: its model's folder is not read.
    """
    return [*_of_software(config), *_of_hardware(config), *_of_places(config)]


def _of_software(config: ServeConfig) -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} ({platform.machine()})")
    torch = _version("torch")
    build = "CUDA" if _version("nvidia-cuda-runtime") or "+cu" in torch else "CPU"
    yield Finding("packages", f"ray {_version('ray')}, torch {torch} ({build})")
    lacking = compiler_line(config)
    if lacking is not None:
        yield Finding("C++ compiler", "none", f"{lacking}; without it torch computes, several times slower")
    elif packaged_library().exists():
        yield Finding("C++ compiler", "not needed: the native step is compiled")
    else:
        try:
            yield Finding("C++ compiler", " ".join(find_compiler()))
        except BuildError:
            yield Finding("C++ compiler", "none, and not needed with this configuration")


def _of_hardware(config: ServeConfig) -> Iterator[Finding]:
    flags = set(re.findall(r"\w+", _cpu_flags()))
    sets = [name for name in _SETS if name in flags]
    yield Finding("processor", f"{os.cpu_count()} cores; {', '.join(sets) or 'none of the faster instruction sets'}")
    gpu = "NVIDIA driver" if Path("/dev/nvidiactl").exists() else "none, and none is needed"
    wanted = config.model.device == "cuda" and not Path("/dev/nvidiactl").exists()
    yield Finding("GPU", gpu, '[model] device = "cuda" needs one: install its driver, or remove the key' * wanted)
    free = free_memory()
    lines = tight_lines(config, 0, free)
    in_shared = [line for line in lines if line.startswith("/dev/shm")]
    in_all = [line for line in lines if line not in in_shared]
    yield Finding("memory", f"{free.total / GIB:,.1f} GiB free", "".join(in_all))
    yield Finding("/dev/shm", f"{free.shared / MIB:,.0f} MiB free", "".join(in_shared))


def _of_places(config: ServeConfig) -> Iterator[Finding]:
    folder = temporary_folder()
    free = shutil.disk_usage(folder).free
    short = f"{folder} is short of space: logs and the SSD tier are there; set TMPDIR" if free < _LEAST_DISK else ""
    yield Finding("disk", f"{free / GIB:,.1f} GiB free in {folder}", full_disk(folder) or short)
    gateway, dashboard = config.gateway, config.cluster
    yield Finding("gateway port", f"{gateway.host}:{gateway.port}", _refusal_of_port(config))
    where = f"{dashboard.dashboard_host}:{dashboard.dashboard_port or 'any'}"
    yield Finding("dashboard", where, _refusal_of_rest(config))
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < _LEAST_FILES
    yield Finding("open files", f"{files}", f"raise it: ulimit -n {min(most, 65536)}" if few else "")


def _refusal_of_port(config: ServeConfig) -> str:
    try:
        require_free(config.gateway.host, config.gateway.port, GATEWAY_PORT)
    except ConfigError as error:
        return str(error)
    return ""


def _refusal_of_rest(config: ServeConfig) -> str:
    """Why the dashboard cannot be started; a gateway's port of 0 is not looked at."""
    try:
        require_places(config.gateway.host, 0, GATEWAY_PORT, config.cluster)
    except ConfigError as error:
        return str(error)
    return ""


def _cpu_flags() -> str:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
