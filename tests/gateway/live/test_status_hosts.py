"""NPUs that a gateway's status counts: those of living hosts, and the file's only while no host is known."""

from serving.gateway.live.status import cluster_status
from serving.values.hosts import HostRow
from tests.scaling.live.case import config


def test_offered_npus_are_those_of_living_hosts() -> None:
    hosts = [HostRow("n0", "a", 8), HostRow("n1", "b", 8), HostRow("n2", "c", 8, lost_s=2.0)]
    status = cluster_status(config(), [], {"running": 0}, hosts=hosts)
    assert status["npus"] == {"used": 0, "offered": 16}
    assert [(row["name"], row["lost_s"]) for row in status["hosts"]] == [("n0", None), ("n1", None), ("n2", 2.0)]


def test_before_the_board_has_told_any_the_configuration_counts() -> None:
    status = cluster_status(config(), [], {"running": 0})
    assert (status["npus"]["offered"], status["hosts"]) == (16, [])
