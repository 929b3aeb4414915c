"""A live shell's side and virtual time, on the same recorded trace: the same moves, and equally even ranks."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hardware.cost.cost_model import CostModel
from hardware.faults import Fault, FaultKind
from hardware.units import MIB, Seconds
from serving.group.core.group_experts import ExpertRules
from serving.group.core.placement import balancedness, rank_loads
from serving.group.core.routing_trace import TraceHead, TraceSlice, trace_lines
from serving.values.expert_map import ExpertMap
from serving.values.group import RankRole
from serving.virtual.fault_injector import FaultInjector
from serving.virtual.simulation import cost_model
from serving.virtual.supernode import Supernode
from tests.fakes.virtual_loop import VirtualLoop
from tests.virtual.core.case import config, workload
from tests.virtual.core.live_experts import LiveExperts

RANKS, EXPERTS, LAYERS, SLICE_S, SLICES = 4, 8, 5, 60.0, 24
EP = dict.fromkeys(range(RANKS), RankRole.BOTH)
ROLES = dict.fromkeys(range(2), RankRole.ATTENTION) | dict.fromkeys(range(8, 8 + RANKS), RankRole.EXPERTS)
"""Two attention ranks, and expert ranks, which are numbered from 8 on."""
LOST, BACK = 5, 17
"""Slices in which an expert rank is lost, and its replacement joins. A pause of 52.7 s ends within a slice."""
MODEL = Path(__file__).parents[3] / "deploy" / "models" / "storyteller"


def recorded(sources: int = RANKS) -> list[list[TraceSlice]]:
    """[number] Slices of ranks: other experts are popular after half of the time, and all slices differ."""
    draw, found = Random(5), []
    for number in range(SLICES):
        topic = Random(1 if number < SLICES // 2 else 2)
        weights = [[topic.lognormvariate(0.0, 1.0) for _ in range(EXPERTS)] for _ in range(LAYERS)]
        rows = [
            tuple(tuple(int(one * draw.uniform(80, 120)) for one in row) for row in weights) for _ in range(sources)
        ]
        found.append([TraceSlice(number * SLICE_S, rank, own) for rank, own in enumerate(rows)])
    return found


def played(trace: Path, *, lost: int | None = None, apart: bool = False, **experts: Any) -> Supernode:
    """A supernode whose only decode instance follows the trace to its end.

    Args:
        lost: die that is lost in slice `LOST` until slice `BACK`.
        apart: experts have dies of their own, beside two for attention.
    """
    simulation = {"expert_dies": RANKS, "domains": 1} if apart else {}
    settings = config(
        model={"path": MODEL, "name": "storyteller"}, simulation={"routing": str(trace), "drafts": 0} | simulation,
        decode={"npus_per_instance": RANKS // 2 + apart, "max_sequences": 64},
        prefill={"replicas": 1, "npus_per_instance": 1}, experts=experts,
    )  # fmt: skip
    node = Supernode(settings, cost_model(settings), 0)
    for pool in ("prefill", "decode"):
        node.start_instance(pool)
    node.feed(workload([(0.05 * SLICE_S * n, 64, 200) for n in range(SLICES * 20 + 20)]))
    if lost is not None:
        name = node.placement.dies_of(node.places[node.decodes[0].name])[lost]
        at_s, lasts_s = (LOST + 0.5) * SLICE_S + 1.0, (BACK - LOST) * SLICE_S
        FaultInjector(node, (Fault(Seconds(at_s), FaultKind.DIE, str(name), Seconds(lasts_s), 0.0),))
    node.queue.run(SLICE_S * SLICES)
    return node


def even(at: Any, slices: list[TraceSlice], first: int = 0) -> float:
    """Balancedness of a map under a slice's load, mean over layers."""
    found = []
    for layer, one in enumerate(at.layers):
        load = [sum(each.rows[layer][expert] for each in slices) for expert in range(EXPERTS)]
        found.append(balancedness(rank_loads(one, load, first + RANKS)[first:]))
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("roles", "policy", "lost"),
    [(EP, "time_sliced", None), (EP, "global", None), (ROLES, "time_sliced", 2), (ROLES, "global", 3)],
)
def test_the_same_trace_moves_the_same_experts_live_and_in_virtual_time(
    tmp_path: Path, roles: dict[int, RankRole], policy: Any, lost: int | None
) -> None:
    """With roles an expert rank is lost, and its replacement joins."""
    first = next(rank for rank, role in roles.items() if role.has_experts)
    trace, file = recorded(sum(role.has_attention for role in roles.values())), tmp_path / "routing.jsonl"
    head = TraceHead("decode#a", LAYERS, EXPERTS, SLICE_S)
    file.write_bytes(b"".join(trace_lines(head, [one for each in trace for one in each])))
    rules = ExpertRules(policy, 5 * SLICE_S, 5, 0.05, 1e6 * MIB)
    node = played(
        file, lost=lost, apart=first > 0, redundant=1, policy=policy, window_s=rules.window_s, slices=rules.slices,
        move_mib_per_s=1e6,
    )  # fmt: skip
    assert node.experts is not None
    group = node.experts.of(node.decodes[0].name)
    changes = {} if lost is None else {LOST: first + lost, BACK: first + lost}
    live = LiveExperts(rules, roles, 1, LAYERS, EXPERTS, expert_bytes(node.cost), changes)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        maps = runner.run(live.play(trace, SLICE_S))
    shown, simulated = live.moves.experts.journal.shown(0.0), group.core.journal.shown(0.0)
    assert decisions(shown, first) == decisions(simulated)
    assert len(simulated["rebalances"]) >= 2
    ledger = group.core.ledger
    assert ledger is not None
    assert homes(maps[-1], first) == homes(ledger.map)
    assert even(maps[-1], trace[-1], first) == pytest.approx(even(ledger.map, trace[-1]), abs=0.02)
    assert even(ledger.map, trace[-1]) > even(maps[0], trace[-1], first)


def expert_bytes(cost: CostModel) -> int:
    return round(cost.shape.expert_weights * cost.shape.formats.experts.bytes)


def homes(at: ExpertMap, first: int = 0) -> list[list[list[int]]]:
    """[layer][expert] Ranks that hold it, counted from the first one with experts."""
    return [[sorted(home.at.rank - first for home in one) for one in layer.homes] for layer in at.layers]


def decisions(shown: dict[str, Any], first: int = 0) -> list[dict[str, Any]]:
    """Rebalances and moves, without their times; ranks are counted from the first one with experts."""
    timed = ("at_s", "seconds", "map_version")
    return [
        {
            key: value - first if key in ("from", "to") and value is not None else value
            for key, value in one.items()
            if key not in timed
        }
        for one in (*shown["rebalances"], *shown["moves"])
    ]
