"""Processes of several hosts, each behind an agent: numbers may be equal, hosts come and go."""

import signal
from collections.abc import Mapping
from typing import Any

from serving.injected_faults import InjectedFault
from serving.launch.hosts import Host
from serving.tools.chaos.host_agents import HostAgents
from serving.tools.chaos.targets import ListedProcess, Target

SESSION = "abc"


class Agent:
    """A host whose processes are listed as they come."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.signals: list[tuple[int, int]] = []
        self.faults: list[tuple[str, float]] = []

    def check(self, rows: list[ListedProcess]) -> list[Target]:
        return [Target(row.pool, row.name, row.pid, 1) for row in rows if row.pid not in self.dead]

    def send(self, target: Target, kind: int) -> bool:
        assert target.host == ""
        self.signals.append((target.pid, kind))
        return True

    def inject(self, _: Target, fault: InjectedFault, lasts_s: float) -> None:
        self.faults.append((fault.target, lasts_s))

    def clear(self) -> None:
        self.faults = []

    def strays(self, known: list[int]) -> list[str]:
        return [f"process {pid}" for pid in (7, 8) if pid not in known]

    def orphans(self) -> list[str]:
        return ["segment"]


def host(name: str, address: str, node: str) -> Host:
    """A host as Ray lists it."""
    return Host(name, address, node, 8, 1024, head=False)


class Cluster:
    """Two hosts, one of which may be silent."""

    def __init__(self) -> None:
        self.hosts = [host("left", "10.0.0.1", "aa"), host("right", "10.0.0.2", "bb")]
        self.agents: dict[str, Agent] = {}
        self.silent: set[str] = set()
        self.machines = HostAgents(SESSION, lambda: self.hosts, self.start, self.ask)

    def start(self, node: str) -> Agent:
        self.agents[node] = Agent()
        return self.agents[node]

    def ask(
        self, agents: Mapping[str, Any], method: str, arguments: Mapping[str, tuple[Any, ...]], _: float
    ) -> dict[str, Any]:
        there = {node: agent for node, agent in agents.items() if node not in self.silent}
        return {node: getattr(agent, method)(*arguments[node]) for node, agent in there.items()}


def status(*nodes: str) -> dict[str, Any]:
    """A replica on each node; all processes have the number 7."""
    replicas = [{"replica": f"decode#{node}", "pid": 7, "node": node} for node in nodes]
    return {"pools": [{"name": "decode", "replicas": replicas}]}


def test_equal_numbers_on_two_hosts_are_two_processes() -> None:
    cluster = Cluster()
    left, right = cluster.machines.look(status("aa", "bb"))
    assert [one.process for one in (left, right)] == [("left (10.0.0.1)", 7), ("right (10.0.0.2)", 7)]
    assert cluster.machines.send(right, signal.SIGKILL)
    assert (cluster.agents["aa"].signals, cluster.agents["bb"].signals) == ([], [(7, signal.SIGKILL)])
    cluster.machines.inject(left, InjectedFault(1, "slow_link", left.name, 0.0), 3.0)
    assert cluster.agents["aa"].faults == [("decode#aa", 3.0)]
    cluster.machines.clear()
    assert cluster.agents["aa"].faults == []
    assert cluster.machines.strays({right.process}) == [
        "left (10.0.0.1): process 7", "left (10.0.0.1): process 8", "right (10.0.0.2): process 8"
    ]  # fmt: skip
    assert cluster.machines.orphans() == ["left (10.0.0.1): segment", "right (10.0.0.2): segment"]


def test_a_process_that_has_ended_or_whose_host_is_silent_is_not_alive() -> None:
    cluster = Cluster()
    left, right = cluster.machines.look(status("aa", "bb"))
    assert cluster.machines.alive(left)
    cluster.agents["aa"].dead.add(7)
    cluster.silent.add("bb")
    assert cluster.machines.look(status("aa", "bb")) == []
    assert not cluster.machines.alive(left)
    assert not cluster.machines.alive(right)
    assert not cluster.machines.send(right, signal.SIGSTOP)


def test_a_host_that_joins_gets_an_agent_and_one_that_has_left_none() -> None:
    cluster = Cluster()
    _, right = cluster.machines.look(status("aa", "bb"))
    cluster.hosts = [cluster.hosts[0], host("third", "10.0.0.3", "cc")]
    found = cluster.machines.look(status("aa", "cc"))
    assert [one.host for one in found] == ["left (10.0.0.1)", "third (10.0.0.3)"]
    assert not cluster.machines.send(right, signal.SIGKILL)
    assert cluster.agents["bb"].signals == []
