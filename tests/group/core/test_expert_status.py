"""Experts of a group, from its ranks' announcements, and as `cloudmatrix experts` prints them."""

import json
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from serving.cli.experts_table import MOST_MOVES, heat, print_experts, print_order
from serving.cluster.membership import Member
from serving.cluster.ray_metrics import expert_facts, instance_stats
from serving.group.compute.rank_experts import RankFacts
from serving.group.core.expert_status import expert_status, group_stats
from serving.group.core.group_map import opening_map
from serving.group.core.placement import balancedness, rank_loads
from serving.ids import NodeId, ReplicaId
from serving.telemetry.stats import InstanceStats
from serving.values.expert_map import ExchangeFacts, SessionTimes
from tests.group.maps import map_of

ROWS = np.array([[9, 0, 1, 2], [0, 0, 0, 0]], np.uint64)
OPENING = opening_map(4, 2, 0, layers=2)


EXCHANGES = (
    ExchangeFacts((0, 300), (0, 40), (0.0, 2.0), 6.0, sessions=SessionTimes(0.5, 1.0, 0.25, 8)),
    ExchangeFacts((50, 0), (6, 0), (0.5, 0.0), 7.5),
    ExchangeFacts((1, 2, 0), (3, 4, 0), (0.5, 0.5, 0.0), 1.0),
)


def member(rank: int, facts: RankFacts, epoch: int = 1, rows: Any = ROWS) -> Member:
    told = msgspec.to_builtins(facts.of(rows, epoch, epoch, EXCHANGES[rank]))
    own = {"group": "decode#a", "rank": rank, "ranks": 2, "pid": 70 + rank, "state": "serving", "experts": told}
    return Member(ReplicaId(f"decode#a.r{rank}"), "decode", NodeId("n"), "127.0.0.1", 1, "x", own)


def two_ranks() -> dict[str, Any]:
    both = [member(rank, RankFacts(OPENING, rank, 2, (0, 1), ("1", "draft"))) for rank in (1, 0)]
    alone = Member(ReplicaId("prefill#b"), "prefill", NodeId("n"), "127.0.0.1", 1, "x", {})
    return expert_status({"prefill": 1, "decode": 2}, [*both, alone])


def test_a_group_is_the_sum_of_its_ranks() -> None:
    (group,) = two_ranks()["groups"]
    loads = rank_loads(OPENING.layers[0], [18, 0, 2, 4], 2)
    assert group["layer_names"] == ["1", "draft"]
    assert group["rows"] == [[18, 0, 2, 4], [0, 0, 0, 0]]
    assert group["balancedness"] == [balancedness(loads), 1.0]
    assert group["rank_rows"] == loads
    assert group["busiest"][0] == {"layer": 0, "expert": 0, "rows": 18}
    assert [one["rank"] for one in group["ranks"]] == [0, 1]
    assert json.loads(json.dumps(group)) == group


def test_ranks_of_two_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    """Expert ranks are numbered from 4 on; attention ranks count rows, which expert ranks compute."""
    opening = opening_map(4, 6, 0, layers=2, holders=(4, 5))
    told = {"ranks": 4, "expert_ranks": 2, "first_expert": 4}
    exchange = ExchangeFacts((0,) * 6, (0,) * 6, (0.0,) * 6, 1.0, sessions=SessionTimes(4e-5, 1.2e-4, 2e-5, 2))
    members = []
    for rank in (0, 1, 4, 5):
        facts = RankFacts(opening, rank, 2, (0, 1, 4, 5)).of(ROWS if rank < 4 else 0 * ROWS, 1, 1, exchange)
        own = {**member(0, RankFacts(OPENING, 0, 2, (0, 1))).facts, **told, "rank": rank}
        own |= {"role": "attention" if rank < 4 else "experts", "experts": msgspec.to_builtins(facts)}
        members.append(Member(ReplicaId(f"decode#a.r{rank}"), "decode", NodeId("n"), "", 0, "x", own))
    (group,) = expert_status({"decode": 4}, members)["groups"]
    assert (group["rank_numbers"], group["ranks_total"], group["expert_ranks"]) == ([0, 1, 4, 5], 4, 2)
    assert group["rank_rows"] == [0, 0, 0, 0, *rank_loads(OPENING.layers[0], [18, 0, 2, 4], 2)]
    assert group["balancedness"][0] == balancedness(group["rank_rows"][4:]), "among expert ranks"
    print_experts({"groups": [group]}, "ranks", as_json=False)
    said = capsys.readouterr().out
    assert "attention ranks 0,1 and expert ranks 4,5 of 4 compute together" in said
    assert "r1 sessions, a layer's mean: A2E 20 us, experts 60 us, E2A 10 us" in said
    shown = expert_facts(members[0].facts)
    assert shown is not None
    assert (shown.ranks, len(shown.members)) == (4, 4), "or an alert would miss a rank"


def test_a_lost_rank_does_not_count_and_its_experts_are_borrowed() -> None:
    alone = RankFacts(map_of(OPENING, [1], 2), 1, 2, (1,))
    (group,) = expert_status({"decode": 2}, [member(1, alone, epoch=2)])["groups"]
    assert (group["epoch"], group["members"], group["ranks_total"]) == (2, [1], 2)
    assert group["balancedness"] == [1.0, 1.0]
    assert group["ranks"][0]["borrowed_count"] == 4


def test_ranks_that_say_it_of_another_size_count_as_far_as_they_can() -> None:
    """During a resize one rank has not announced itself since."""
    larger = opening_map(4, 3, 0, layers=2)
    new, old = RankFacts(larger, 0, 2, (0, 1, 2)), RankFacts(OPENING, 1, 2, (0, 1))
    (group,) = expert_status({"decode": 2}, [member(0, new, epoch=2), member(1, old)])["groups"]
    assert (group["members"], group["ranks_total"], len(group["rank_rows"])) == ([0, 1, 2], 3, 3)
    (group,) = expert_status({"decode": 2}, [member(0, old, epoch=3), member(2, new, epoch=2)])["groups"]
    assert (group["members"], len(group["rank_rows"])) == ([0, 1], 2)


def test_a_large_model_has_its_named_experts_instead_of_a_table() -> None:
    rows = np.ones((8, 256), np.uint64)
    rows[7, 255] = 50
    large = [
        member(rank, RankFacts(opening_map(256, 2, 0, layers=8), rank, 128, (0, 1)), rows=rows) for rank in range(2)
    ]
    (group,) = expert_status({"decode": 2}, large)["groups"]
    assert group["rows"] is None
    assert group["busiest"][0] == {"layer": 7, "expert": 255, "rows": 100}
    assert len(group["balancedness"]) == 8


def test_time_and_bytes_between_ranks() -> None:
    (group,) = two_ranks()["groups"]
    assert group["exchange"] == {
        "worked_s": [6.0, 7.5], "waited_s": [[0.0, 2.0], [0.5, 0.0]], "bytes": [[0, 306], [90, 0]],
        "sessions": [
            {"a2e_s": 0.5, "experts_s": 1.0, "e2a_s": 0.25, "rounds": 8},
            {"a2e_s": 0.0, "experts_s": 0.0, "e2a_s": 0.0, "rounds": 0},
        ],
    }, "rows that go there, and results for rows of there"  # fmt: skip
    alone = RankFacts(map_of(OPENING, [1], 2), 1, 2, (1,))
    (group,) = expert_status({"decode": 2}, [member(1, alone)])["groups"]
    assert group["exchange"]["worked_s"] == [0.0, 7.5]
    (stats,) = group_stats({"groups": [group]})
    assert (stats.group, stats.pool, stats.balancedness) == ("decode#a", "decode", (1.0, None))


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_experts(two_ranks(), "load", as_json=False)
    text = capsys.readouterr().out
    assert "ranks 0,1 of 2 compute together, epoch 1" in text
    assert re.search(r"1 +draft +1\.00", text), "the second one's name in the model"
    assert "|@ .:|" in text.replace(heat([18, 0, 2, 4]), "@ .:")
    print_experts(two_ranks(), "ranks", as_json=False)
    shown = capsys.readouterr().out
    assert re.search(r"r0 .* 25% +r1: 2\.0", shown), "of 8 s it waited 2, for rank 1"
    assert re.search(r"r1 .* 6% +r0: 0\.5", shown)
    print_experts(two_ranks(), "placement", as_json=False)
    assert "layer 1:" in capsys.readouterr().out
    print_experts(two_ranks(), "load", as_json=True)
    assert json.loads(capsys.readouterr().out) == two_ranks()


SHOWN = {
    "shown_s": 2.0,
    "moves": [{"at_s": 1.0, "layer": 0, "expert": 3, "from": None, "to": 1, "slot": 2, "reason": "operator"}],
    "rebalances": [
        {
            "at_s": 1.0, "reason": "load", "policy": "global", "layers": [0, 1], "moves": 3, "gain": 0.25,
            "seconds": 1.5, "outcome": "undone", "problem": "deadline",
        }
    ],
    "outcomes": {"undone": 1},
}  # fmt: skip


def test_moves_are_shown_as_the_shell_told_them_last(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (member(rank, RankFacts(OPENING, rank, 2, (0, 1))) for rank in range(2))
    old = {"shown_s": 1.0, "moves": [], "rebalances": [], "outcomes": {}}
    both = [replace(one, facts={**one.facts, "of_group": told}) for one, told in ((first, SHOWN), (second, old))]
    told = expert_status({"decode": 2}, both)
    (group,) = told["groups"]
    assert {name: group[name] for name in ("moves", "rebalances", "outcomes")} == {
        name: value for name, value in SHOWN.items() if name != "shown_s"
    }
    print_experts(told, "moves", as_json=False)
    text = capsys.readouterr().out
    assert "deadline" in text
    assert "25%" in text
    assert "model" in text
    print_experts(two_ranks(), "moves", as_json=False)
    assert "no expert has been moved" in capsys.readouterr().out


def test_the_pace_of_ranks_and_what_is_done_about_a_slow_one(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"at_s": 1.7e9, "rank": 1, "measure": "fewer_tokens", "reason": "1.50 times the median"}
    told = {"shown_s": 1.0, "paces": {"1": 1.5}, "treated": {"1": "fewer_tokens"}, "measures": [one]}
    status = two_ranks()
    status["groups"][0].update(told)
    print_experts(status, "ranks", as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "1.50, fewer tokens" in text
    assert "r1 fewer tokens: 1.50 times the median" in text


def test_an_orders_answer_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    moves = [{"expert": expert, "from": 0, "to": 1, "slot": 2} for expert in range(MOST_MOVES + 1)]
    answer = {"message": "this would be done", "moves": len(moves), "layers": [{"layer": 0, "moves": moves}]}
    print_order(answer, as_json=False)
    text = capsys.readouterr().out
    assert text.startswith("this would be done\n")
    assert "and 1 more" in text
    print_order(answer, as_json=True)
    assert json.loads(capsys.readouterr().out) == answer


def test_without_a_group_one_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_experts(expert_status({"decode": 1}, []), "load", as_json=False)
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert "ep is 1 everywhere" in text
    assert "[decode] ep = 2" in text
    print_experts(expert_status({"decode": 2}, []), "load", as_json=False)
    assert "no rank of decode" in capsys.readouterr().out


def test_shades_are_relative_to_the_busiest_expert() -> None:
    assert heat([0, 1, 90]) == " .@"
    assert heat([0, 0]) == "  "
    assert len(heat([1] * 200)) <= 64


def test_metrics_get_the_facts_of_a_rank() -> None:
    one = member(1, RankFacts(OPENING, 1, 2, (0, 1)))
    numbers = {name: 0 for name in InstanceStats.__dataclass_fields__}
    shown = instance_stats(replace(one, facts={**numbers, "pool": None, "npus": [], **one.facts}), {})
    assert shown.rank == 1
    assert shown.experts is not None
    assert shown.experts.sent == (12, 0)
