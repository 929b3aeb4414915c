"""The state of an instance's life in `cloudmatrix status`."""

from types import SimpleNamespace

import pytest

from hardware.topology import NpuId
from serving.gateway.live.status import cluster_status, current_facts, host_labels, ordered_groups, state_of
from serving.values.system_tally import HostRow
from serving.values.traffic import NoticeKind
from tests.scaling.live.case import config


@pytest.mark.parametrize(
    ("lost", "linked", "draining", "state"),
    [
        (None, True, False, "serving"),
        (None, True, True, "draining"),
        (None, False, False, "starting"),
        ("died", False, False, "dead"),
        ("frozen", False, True, "frozen"),
        ("frozen", True, False, "frozen"),
    ],
)
def test_the_link_is_the_truth_about_life(lost: NoticeKind | None, linked: bool, draining: bool, state: str) -> None:
    assert state_of({"draining": draining}, lost, linked=linked) == state


def test_hosts_are_called_as_their_npus_are() -> None:
    members = [
        SimpleNamespace(node=node, facts={"npus": [str(NpuId(number, 4)), str(NpuId(number, 5))]})
        for number, node in enumerate(("aa", "bb"))
    ]
    assert host_labels(members) == {"aa": "n0", "bb": "n1"}
    assert host_labels([SimpleNamespace(node="cc", facts={"npus": []})]) == {}


def test_orders_to_a_group_go_to_an_instance_if_there_is_one() -> None:
    def rank(number: int, state: str, port: int) -> SimpleNamespace:
        facts = {"group": "decode#a", "state": state, "actor": f"r{number}"}
        return SimpleNamespace(pool="decode", port=port, facts=facts)

    def asked(*members: SimpleNamespace) -> list[str]:
        return [one.actor for one in ordered_groups(members)]

    assert asked(rank(8, "serving", 0), rank(0, "frozen", 1), rank(1, "serving", 2)) == ["r1"]
    assert asked(rank(8, "serving", 0), rank(0, "frozen", 1)) == ["r0"], "it waits for an expert rank that may be dead"
    assert asked(rank(8, "serving", 0), rank(0, "dead", 1)) == ["r8"]
    assert asked(rank(0, "draining", 1)) == []


def test_offered_npus_are_those_of_living_hosts() -> None:
    hosts = [HostRow("n0", "a", 8), HostRow("n1", "b", 8), HostRow("n2", "c", 8, lost_s=2.0)]
    status = cluster_status(config(), [], {"running": 0}, hosts=hosts)
    assert status["npus"] == {"used": 0, "offered": 16}
    assert [(row["name"], row["lost_s"]) for row in status["hosts"]] == [("n0", None), ("n1", None), ("n2", 2.0)]


def test_before_the_board_has_told_any_the_configuration_counts() -> None:
    status = cluster_status(config(), [], {"running": 0})
    assert (status["npus"]["offered"], status["hosts"]) == (16, [])


def test_facts_that_were_asked_for_count_while_they_are_the_newest() -> None:
    announced, told = {"told_s": 5.0, "steps_total": 1, "actor": "a"}, {"told_s": 6.0, "steps_total": 2}
    assert current_facts(announced, None, told) == {"told_s": 6.0, "steps_total": 2, "actor": "a"}
    assert current_facts({**announced, "told_s": 7.0}, None, told)["steps_total"] == 1
    assert current_facts(announced, None, {}) == announced
