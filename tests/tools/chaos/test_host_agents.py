"""Processes of several hosts, each behind an agent: ids may be equal, hosts join and leave."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from serving.faults.injected import InjectedFault
from serving.faults.scenario import PARTS
from serving.launch.hosts import Host
from serving.tools.chaos.host_agents import HostAgents
from serving.tools.chaos.machines import PROGRAMS, TITLES, Process, find_parts, of_session, part_of
from serving.tools.chaos.targets import ListedProcess, Target
from tests.e2e.server import wait_for

SESSION = "abc"


class Agent:
    """A host with scripted listings of its processes."""

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


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("ray::DashboardAgent", "agents"),
        ("ray::RuntimeEnvAgent ", "agents"),
        ("ray::ServeController", "controller"),
        ("ray::ServeController.listen_for_change()", "controller"),
        ("ray::ScalingBoardActor", "board"),
        ("ray::PoolControlActor", "pool_control"),
        ("ray::MembershipActor", "membership"),
        ("ray::ServeReplica:cloudmatrix:gateway", "gateway"),
        ("ray::ServeReplica:cloudmatrix:gateway.__call__ ", "gateway"),
        ("ray::ServeReplica:cloudmatrix:decode", None),
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/cloudmatrix-abc123/ray", "gcs"),
        ("/usr/bin/python /x/ray/dashboard/dashboard.py --host=127.0.0.1", "dashboard"),
        ("/usr/bin/python -u /x/ray/_private/log_monitor.py --session-dir=/tmp/s", "monitors"),
        ("/usr/bin/python -u /x/ray/autoscaler/_private/monitor.py --logs-dir=/tmp/s", "monitors"),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/gcs_server", "node"),
        ("/usr/bin/python -I -S /x/agent_keeper.py /usr/bin/python /x/ray/dashboard/agent.py", None),
        ("", None),
    ],
)
def test_each_is_known(line: str, part: str | None) -> None:
    assert part_of(line) == part


def test_only_parts_of_the_session_are_known() -> None:
    assert {*TITLES.values(), *PROGRAMS.values(), "gateway", "shell"} == set(PARTS)

    # Its title does not identify it: its ancestors do.
    table = [
        Process(1, 0, "init"),
        Process(10, 1, "cloudmatrix serve"),
        Process(11, 10, "/x/gcs_server --log_dir=/tmp/cloudmatrix-abc123/ray"),
        Process(12, 10, "/x/raylet --session_dir=/tmp/cloudmatrix-abc123/ray"),
        Process(13, 12, "python agent_keeper.py"),
        Process(14, 13, "ray::DashboardAgent"),
        Process(22, 1, "/x/raylet --session_dir=/tmp/cloudmatrix-abc1234/ray"),
        Process(23, 22, "ray::ServeController"),
    ]
    assert [process.pid for process in of_session(table, "abc123")] == [11, 12, 13, 14]


def test_processes_of_this_machine_are_found() -> None:
    gcs = ["/x/gcs_server", "-I", "-S", "-c", "input()", "--log_dir=/tmp/cloudmatrix-fedcba/ray"]
    with subprocess.Popen(gcs, executable=sys.executable, stdin=subprocess.PIPE) as process:
        wait_for(lambda: find_parts("fedcba") != [], "it has become what its command says")
        assert [(one.pool, one.pid) for one in find_parts("fedcba")] == [("gcs", process.pid)]
        assert find_parts("fedcb0") == []
        process.communicate()
    assert find_parts("fedcba") == []
