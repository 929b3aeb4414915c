"""`cloudmatrix doctor`: collects facts from an actor on every host of a Ray cluster, and checks the network between
hosts.
"""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.table import Table

from serving.config.ports import PortRange
from serving.errors import ConfigError
from serving.launch.banner import print_text, say
from serving.launch.deploying import StartError
from serving.launch.existing import REACH_S, ExistingCluster
from serving.launch.host_facts import HostFacts, facts_here, problems, rows, supplied_lines
from serving.launch.hosts import ANSWER_S, Host, reason_of
from serving.launch.ray_parts import leave_ray
from serving.sockets.listening import listen
from serving.terminal import table_console

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
    return 1 if lines else 0


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
