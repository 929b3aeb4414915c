"""Facts about one host that determine whether the system can run on it, and messages about problems. Pure except for
`facts_here`, which runs on the host."""

import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from hardware.units import MIB
from serving.cluster.host_environment import EVERY_HOST, MANY_HOSTS, TLS, differing_here, value_here
from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY
from serving.launch.hosts import Host
from serving.model.parcel import weights_digest
from serving.regular_file import read_regular
from serving.version import VERSION

MOST_BYTES = 64 << 20
"""Limit of a small file of a model folder."""
CLOCK_S = 1.0
"""Clock difference [s] above which log timestamps and the expiry of one-time login links become misleading."""
_PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about one host.

    Args:
        version, python: of this package and of Python.
        model: digest of the model folder's small files and of the weights' content; empty = missing.
        memory_free, memory_total: of /dev/shm [bytes]; our own segments count as free.
        environment: variables that Ray's processes lack, as NAME=value.
        tls: whether Ray's TLS is on. tls_missing: unreadable TLS files.
        clock: Unix time of the host [s].
    """

    version: str
    python: str
    model: str
    memory_free: int
    memory_total: int
    environment: tuple[str, ...]
    tls: bool
    tls_missing: tuple[str, ...]
    clock: float


def segment_bytes(folder: Path) -> int:
    """Bytes of our own segments in a folder, which a new deployment may reuse."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob(f"{SEGMENT_PREFIX}*"))


def facts_here(model: Path | None) -> HostFacts:
    """Facts about the host of this process, which must have been started by Ray.

    Args:
        model: folder to check; None = none.
    """
    usage = shutil.disk_usage(SHARED_MEMORY)
    lacking = {name: value for name, value in MANY_HOSTS.items() if not value_here(name)}
    tls = value_here(TLS) == "1"
    return HostFacts(
        VERSION,
        platform.python_version(),
        digest_of(model) if model is not None else "",
        usage.free + segment_bytes(SHARED_MEMORY),
        usage.total,
        (*differing_here(EVERY_HOST), *(f"{name}={value}" for name, value in lacking.items())),
        tls,
        tuple(name for name in _TLS_FILES if not Path(value_here(name)).is_file()) if tls else (),
        time.time(),
    )


def digest_of(model: Path) -> str:
    """Digest of a model folder's content; empty if it is not a model folder. Effects: see `weights_digest`."""
    if not (model / "config.json").is_file():
        return ""
    whole = blake2b(digest_size=6)
    for name in _PARTS:
        if (model / name).is_file():
            whole.update(name.encode() + read_regular(model / name, most_bytes=MOST_BYTES))
    whole.update(weights_digest(model).encode())
    return whole.hexdigest()


def problems(
    own: HostFacts,
    facts: Mapping[Host, HostFacts],
    offsets: Mapping[Host, float],
    model: Path | None,
    *,
    supplied: bool = False,
) -> list[str]:
    """One line per problem, with the host and the remedy.

    Args:
        own: of the requesting machine.
        offsets: how far each host's clock is ahead of the requesting machine [s], less the uncertainty.
        model: the model's folder.
        supplied: whether hosts without it receive it from the control store and the KV-cache pool, if any host has it.
    """
    lines = []
    digests = [one.model for one in (own, *facts.values()) if one.model]
    for host, here in sorted(facts.items()):
        if here.version != own.version:
            lines.append(
                f"{host}: has version {here.version}, this machine {own.version}: install the same on every host"
            )
        if model is not None and not here.model:
            if not (supplied and digests):
                lines.append(f"{host}: has no {model}: copy it there, or put it on a volume that every host mounts")
        elif here.model and here.model != digests[0]:
            lines.append(f"{host}: its {model} differs from other hosts: copy one folder to every host")
        lines += _of_memory(host, here)
        if here.environment:
            lines.append(
                f'{host}: its Ray was started without {" ".join(here.environment)}: `eval "$(cloudmatrix node-env)"`'
                " before `ray start`"
            )
        if here.tls != own.tls:
            state = ("off", "on")
            lines.append(
                f"{host}: Ray's TLS is {state[here.tls]}, here {state[own.tls]}: use one RAY_USE_TLS everywhere"
            )
        if here.tls_missing:
            lines.append(f"{host}: no file at {', '.join(here.tls_missing)}: put the certificates there")
        if abs(offsets[host]) > CLOCK_S:
            lines.append(f"{host}: its clock is {offsets[host]:+.1f} s off this machine's: let NTP set it")
    return lines


def supplied_lines(facts: Mapping[Host, HostFacts], model: Path | None) -> list[str]:
    """Information lines about hosts that will receive the model's folder from another host."""
    lacking = [host for host, here in sorted(facts.items()) if model is not None and not here.model]
    return [
        f"{host}: has no {model}: it gets small files from Ray's control store and weights from the KV-cache pool, if"
        " this is deployed from a host that has it"
        for host in lacking
    ]


def _of_memory(host: Host, here: HostFacts) -> Iterable[str]:
    wanted = host.ub_memory_mib * MIB
    if here.memory_total < wanted:
        yield (
            f"{host}: /dev/shm has {here.memory_total // MIB} MiB, but the host offers {host.ub_memory_mib} MiB of UB"
            " memory: make it larger (`mount -o remount,size=…`, --shm-size), or offer less"
        )
    elif here.memory_free < wanted:
        yield (
            f"{host}: /dev/shm has {here.memory_free // MIB} MiB free of {host.ub_memory_mib} MiB of UB memory: delete"
            " what others left there"
        )


def rows(
    facts: Mapping[Host, HostFacts], offsets: Mapping[Host, float], deaf: Mapping[Host, Sequence[str]]
) -> list[tuple[str, ...]]:
    """A row per host: name, version, Python, model, /dev/shm, clock, environment, TLS, unreachable hosts."""
    return [
        (
            str(host),
            here.version,
            here.python,
            here.model or "-",
            f"{here.memory_free // MIB}/{here.memory_total // MIB}",
            f"{offsets[host]:+.2f}",
            f"{len(here.environment)} missing" if here.environment else "as node-env",
            "on" if here.tls else "off",
            ", ".join(deaf.get(host, ())) or "none",
        )
        for host, here in sorted(facts.items())
    ]
