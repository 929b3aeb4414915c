"""Processes beside the pools, known by their titles or command lines, and only those of one session."""

import subprocess
import sys

import pytest

from serving.tools.chaos.parts import PROGRAMS, TITLES, Process, find_parts, of_session, part_of
from serving.tools.chaos.scenario import PARTS


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


def test_every_part_can_be_known() -> None:
    assert {*TITLES.values(), *PROGRAMS.values(), "gateway", "shell"} == set(PARTS)


def test_only_what_belongs_to_the_session() -> None:
    """A title tells nothing of it: its ancestors do."""
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
        found = find_parts("fedcba")
        assert [(one.pool, one.pid) for one in found] == [("gcs", process.pid)]
        assert find_parts("fedcb0") == []
        process.communicate()
    assert find_parts("fedcba") == []
