"""`cloudmatrix doctor`: collects facts on every host of a Ray cluster, and checks the network between them."""

import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.table import Table

from hardware.units import MIB
from loadgen.exit_codes import ExitCode
from serving.cluster.host_environment import EVERY_HOST, MANY_HOSTS, TLS, differing_here, value_here
from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY
from serving.config.cluster import PortRange
from serving.errors import ConfigError
from serving.launch.deploying import StartError
from serving.launch.existing import REACH_S, ExistingCluster
from serving.launch.hosts import ANSWER_S, Host, reason_of
from serving.launch.ray_parts import leave_ray
from serving.model.parcel import weights_digest
from serving.regular_file import read_regular
from serving.sockets.acceptor import listen
from serving.terminal import print_text, say, table_console
from serving.version import VERSION

# Facts about one host that determine whether the system can run on it, and messages about problems. Pure except for
# `facts_here`, which runs on the host.

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


# `cloudmatrix doctor`: collects facts from an actor on every host of a Ray cluster, and checks the network between

COLUMNS = ("host", "version", "Python", "model", "/dev/shm MiB", "clock s", "environment", "TLS", "does not reach")


@ray.remote(num_cpus=0, max_restarts=0)
class HostExaminer:
    """Collects facts about the host on which it runs."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def facts(self, model: Path | None) -> HostFacts:
        """Facts about this host."""
        return facts_here(model)

    def listen(self, ports: PortRange) -> tuple[str, int]:
        """Listen as the system's own sockets would. Returns: address and port."""
        self._socket = listen(str(ray.util.get_node_ip_address()), ports)
        address: tuple[str, int] = self._socket.getsockname()[:2]
        return address

    def unreached(self, others: Mapping[str, tuple[str, int]]) -> list[str]:
        """Names of hosts whose address is unreachable."""
        return [name for name, address in others.items() if not _reaches(address)]


def examine(address: str, model: Path | None, ports: PortRange, *, pool: bool = False) -> int:
    """Examine every host; print one row per host and one line per problem.

    Args:
        pool: whether the system will have a KV-cache pool, which supplies weights to hosts that lack them.
    Returns: the exit code: 1 if there are problems.
    Raises: ConfigError if there is no such Ray.
    """
    try:
        cluster = ExistingCluster(address)
        actors = {host: _examiner(host) for host in cluster.hosts}
        facts, silent = ask(actors, lambda actor: actor.facts.remote(model))
        awake = {host: actors[host] for host in facts}
        offsets = {host: _offset(actor) for host, actor in awake.items()}
        listening, deaf_mute = ask(awake, lambda actor: actor.listen.remote(ports))
        addresses = {str(host): place for host, place in listening.items()}
        deaf, _ = ask(awake, lambda actor: actor.unreached.remote(addresses))
        own = facts_here(model)
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
    lines = [f"{host}: {why}" for host, why in {**silent, **deaf_mute}.items()]
    supplied = pool and any(one.model for one in (own, *facts.values()))
    lines += problems(own, facts, offsets, model, supplied=supplied)
    lines += [
        f"{host}: does not reach {', '.join(others)} at ports {_words(ports)}: open them in the firewall between them"
        for host, others in deaf.items()
        if others
    ]
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows(facts, offsets, deaf):
        table.add_row(*row)
    table_console().print(table)
    for line in [*lines, *(supplied_lines(facts, model) if supplied else ())]:
        print_text(line)
    say(f"{len(lines)} problem{'s' * (len(lines) != 1)} found" if lines else "all hosts are as they should be")
    return ExitCode.FAILURE if lines else ExitCode.OK


def ask(actors: Mapping[Host, Any], question: Callable[[Any], Any]) -> tuple[dict[Host, Any], dict[Host, str]]:
    """Call all actors concurrently. Returns: responses, and a one-line reason for each missing one."""
    asked = {question(actor): host for host, actor in actors.items()}
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
    given: dict[Host, Any] = {}
    silent = {asked[ref]: f"did not respond within {ANSWER_S:.0f} s" for ref in late}
    for ref in done:
        try:
            given[asked[ref]] = ray.get(ref)
        except Exception as error:  # any error of the actor, wrapped by Ray
            silent[asked[ref]] = reason_of(error)
    return given, silent


def _examiner(host: Host) -> Any:
    actor_class: Any = HostExaminer
    place = NodeAffinitySchedulingStrategy(host.node, soft=False)
    return actor_class.options(scheduling_strategy=place).remote()


def _offset(actor: Any) -> float:
    """How far the host's clock is ahead, less the time of the request [s]; 0 if unknown."""
    before = time.time()
    try:
        there: HostFacts = ray.get(actor.facts.remote(None), timeout=ANSWER_S)
    except ray.exceptions.RayError:  # the next call reports the missing response
        return 0.0
    after = time.time()
    if before <= there.clock <= after:
        return 0.0
    return there.clock - (after if there.clock > after else before)


def _reaches(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=REACH_S).close()
    except OSError:
        return False
    return True


def _words(ports: PortRange) -> str:
    return f"{ports.first}-{ports.last}" if ports.first else "of any number"
