"""What `cloudmatrix status` says of an instance's life."""

import pytest

from serving.gateway.live.status import state_of
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
