"""What `cloudmatrix status` says of an instance's life."""

from types import SimpleNamespace

import pytest

from hardware.topology import NpuId
from serving.gateway.live.status import host_labels, state_of
from serving.values.traffic import NoticeKind


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
