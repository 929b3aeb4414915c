"""Hosts of a cluster as `Machines`: an agent on each inspects its processes and signals them.

Agents are actors of the command that creates them, and end with it. They are created only where `[chaos] enabled`
allows faults in the system.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serving.errors import ConfigError
from serving.faults.injected import InjectedFault
from serving.launch.deploying import StartError
from serving.launch.existing import ExistingCluster
from serving.launch.hosts import Host, living_hosts
from serving.launch.ray_parts import leave_ray
from serving.tools.chaos.machines import Machines, ThisMachine
from serving.tools.chaos.targets import ListedProcess, Target, rows_of

ANSWER_S = 5.0
"""A host that takes longer counts as absent: the next poll tries it again."""
START_S = 60.0

Ask = Callable[[Mapping[str, Any], str, Mapping[str, tuple[Any, ...]], float], dict[str, Any]]
"""Queries agents by node: method, arguments by node, deadline. Returns: timely responses by node."""


@ray.remote(num_cpus=0, max_restarts=0)
class HostAgent:
    """One host's processes. Methods as of `ThisMachine`, whose session is the system's."""

    def __init__(self, session: str) -> None:
        self._machine = ThisMachine(session)

    def check(self, rows: list[ListedProcess]) -> list[Target]:
        """Living replicas among these."""
        return self._machine.check(rows)

    def send(self, target: Target, kind: int) -> bool:
        """Signal a process. Returns: False if it has ended."""
        return self._machine.send(target, signal.Signals(kind))

    def inject(self, target: Target, fault: InjectedFault, lasts_s: float) -> None:
        """Apply a fault, by this host's clock."""
        self._machine.inject(target, fault, lasts_s)

    def clear(self) -> None:
        """End all faults."""
        self._machine.clear()

    def strays(self, known: list[int]) -> list[str]:
        """Replicas that are not among these."""
        return self._machine.strays(("", pid) for pid in known)

    def orphans(self) -> list[str]:
        """Segments without a living owner."""
        return self._machine.orphans()


class HostAgents:
    """Implements `Machines`. Calls block; concurrent calls of several threads are allowed.

    Args:
        session: of the system.
        hosts: living hosts.
        start: creates the agent of a node.
        ask: queries several agents at once.
    """

    def __init__(
        self,
        session: str,
        hosts: Callable[[], Iterable[Host]],
        start: Callable[[str], Any],
        ask: Ask,
    ) -> None:
        self.session = session
        self._hosts = hosts
        self._start = start
        self._ask = ask
        self._names: dict[str, str] = {}
        self._agents: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """By host, where its agent is now."""
        self._seen: set[Target] = set()
        self._meet()

    def look(self, status: dict[str, Any]) -> list[Target]:
        """Implements `Machines.look`."""
        rows = rows_of(status)
        if {row.node for row in rows} - set(self._agents):
            self._meet()  # a host has joined
        by_node: dict[str, tuple[Any, ...]] = {
            node: ([row for row in rows if row.node == node],) for node in self._agents
        }
        answers = self._ask(self._agents, "check", by_node, ANSWER_S)
        found = [replace(one, host=self._names[node]) for node, targets in answers.items() for one in targets]
        self._seen = set(found)
        return found

    def parts(self) -> list[Target]:
        """Implements `Machines.parts`: in this case they are Ray's own, and not found."""
        return []

    def alive(self, target: Target) -> bool:
        """Implements `Machines.alive`."""
        return target in self._seen

    def send(self, target: Target, kind: signal.Signals) -> bool:
        """Implements `Machines.send`."""
        return bool(self._one(target, "send", replace(target, host=""), int(kind)))

    def inject(self, target: Target, fault: InjectedFault, lasts_s: float) -> None:
        """Implements `Machines.inject`."""
        self._one(target, "inject", replace(target, host=""), fault, lasts_s)

    def clear(self) -> None:
        """Implements `Machines.clear`."""
        self._all("clear")

    def strays(self, known: Iterable[tuple[str, int]]) -> list[str]:
        """Implements `Machines.strays`."""
        listed = list(known)
        by_node = {node: ([pid for host, pid in listed if host == self._names[node]],) for node in self._agents}
        return self._lines(self._ask(self._agents, "strays", by_node, ANSWER_S))

    def orphans(self) -> list[str]:
        """Implements `Machines.orphans`."""
        return self._lines(self._all("orphans"))

    def _meet(self) -> None:
        """Create agents for hosts without one. Effects: those of lost hosts are dropped."""
        living = {host.node: str(host) for host in self._hosts()}
        self._agents = {node: self._agents.get(node) or self._start(node) for node in living}
        self._names = living
        self._nodes = {name: node for node, name in living.items()}

    def _one(self, target: Target, method: str, *arguments: object) -> object:
        node = self._nodes.get(target.host, "")
        agents = {node: self._agents[node]} if node in self._agents else {}
        return self._ask(agents, method, {node: arguments}, ANSWER_S).get(node)

    def _all(self, method: str) -> dict[str, Any]:
        return self._ask(self._agents, method, dict.fromkeys(self._agents, ()), ANSWER_S)

    def _lines(self, answers: Mapping[str, list[str]]) -> list[str]:
        return [f"{self._names[node]}: {line}" for node, lines in answers.items() for line in lines]


def start_agent(session: str, node: str) -> Any:  # noqa: ANN401 - Ray's handle
    """An agent on a node, until this process disconnects from Ray."""
    actor_class: Any = HostAgent
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    agent = actor_class.options(scheduling_strategy=place).remote(session)
    ray.wait([agent.orphans.remote()], timeout=START_S)  # a process starts there, which takes seconds
    return agent


def ask_agents(
    agents: Mapping[str, Any], method: str, arguments: Mapping[str, tuple[Any, ...]], deadline_s: float
) -> dict[str, Any]:
    """Query several agents at once. Returns: timely responses by node. Raises: ConfigError."""
    asked = {getattr(agent, method).remote(*arguments[node]): node for node, agent in agents.items()}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=deadline_s) if asked else ([], [])
    answers: dict[str, Any] = {}
    for ref in done:
        try:
            answers[asked[ref]] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise ConfigError(str(error.cause)) from error
        except ray.exceptions.RayError:  # its host is lost
            continue
    return answers


@contextmanager
def cluster_machines(address: str) -> Iterator[Callable[[dict[str, Any]], Machines]]:
    """Hosts of the Ray at an address, for the duration of the block.

    Raises: ConfigError if there is no such Ray; the yielded object raises it if the system does not allow chaos.
    """

    def machines(status: dict[str, Any]) -> Machines:
        if not status.get("chaos"):
            raise ConfigError("the system does not allow it: set [chaos] enabled = true in its configuration")
        session = cluster.session.name
        return HostAgents(session, living_hosts, partial(start_agent, session), ask_agents)

    try:
        cluster = ExistingCluster(address)
        yield machines
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
