"""Waiting for groups: the condition for completion, and the message on a timeout."""

from collections.abc import Iterator
from typing import Any

import pytest

from serving.cli import experts
from serving.cli.experts import process_of, wait_for_replacement, wait_for_size
from serving.errors import ScaleError

URL = "http://127.0.0.1:1"


def group(pids: list[int], members: list[int]) -> dict[str, Any]:
    ranks = [{"replica": f"decode#a.r{rank}", "rank": rank, "pid": pid} for rank, pid in enumerate(pids)]
    return {"groups": [{"group": "decode#a", "members": members, "ranks": ranks, "expert_ranks": 0}]}


def roles(attention: list[int], experts: list[int]) -> dict[str, Any]:
    ranks = [{"rank": rank, "role": "attention"} for rank in attention]
    ranks += [{"rank": rank, "role": "experts"} for rank in experts]
    state = {"group": "decode#a", "members": attention + experts, "ranks": ranks, "expert_ranks": len(experts)}
    return {"groups": [state]}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Successive responses of the gateway; the last one repeats."""
    answers: list[dict[str, Any]] = []

    def told() -> Iterator[dict[str, Any]]:
        yield from answers
        while True:
            yield answers[-1]

    following = told()
    monkeypatch.setattr(experts, "ask_gateway", lambda *_: next(following))
    monkeypatch.setattr(experts, "POLL_S", 0.001)
    return answers


def test_a_drain_is_done_when_another_process_computes_in_the_same_place(seen: list[dict[str, Any]]) -> None:
    seen += [
        group([5, 6], [0, 1]),
        group([5, 6], [0, 1]),  # it drains
        group([5], [0]),
        group([5, 7], [0]),  # it has not joined
        group([5, 7], [0, 1]),
    ]
    before = process_of(URL, None, "decode#a.r1")
    assert before == 6
    assert wait_for_replacement(URL, None, "decode#a.r1", before) >= 0.002
    assert process_of(URL, None, "decode#a.r9") is None


def test_a_resize_is_done_when_all_compute_together(seen: list[dict[str, Any]]) -> None:
    seen += [group([5, 6], [0, 1]), group([5, 6, 7], [0, 1]), group([5, 6, 7], [0, 1, 2])]
    assert wait_for_size(URL, None, {"groups": [{"group": "decode#a", "sizes": [3]}]}) >= 0.001


def test_a_role_switch_shows_its_progress(seen: list[dict[str, Any]]) -> None:
    seen += [roles([0, 1], [8]), roles([0, 1], [8]), roles([0], [8]), roles([0], [8, 9])]
    shown: list[str] = []
    wait_for_size(URL, None, {"groups": [{"group": "decode#a", "sizes": [1, 2]}]}, show=shown.append)
    assert shown == [
        "decode#a: attention ranks 0,1 and expert ranks 8 compute together",
        "decode#a: attention ranks 0 and expert ranks 8 compute together",
        "decode#a: attention ranks 0 and expert ranks 8,9 compute together",
    ]


def test_what_takes_too_long(seen: list[dict[str, Any]]) -> None:
    seen.append(group([5, 6], [0, 1]))
    with pytest.raises(ScaleError, match="have not got their size"):
        wait_for_size(URL, None, {"groups": [{"group": "decode#a", "sizes": [3]}]}, wait_s=0.0)
    with pytest.raises(ScaleError, match=r"the place of decode#a\.r1"):
        wait_for_replacement(URL, None, "decode#a.r1", 6, wait_s=0.0)
