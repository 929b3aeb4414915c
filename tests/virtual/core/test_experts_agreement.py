"""A live shell's side and virtual time, on the same recorded trace: the same moves, and equally even ranks."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hardware.cost.cost_model import CostModel
from hardware.units import MIB
from serving.group.core.group_experts import ExpertRules
from serving.group.core.placement import balancedness, rank_loads
from serving.group.core.routing_trace import TraceHead, TraceSlice, trace_lines
from serving.virtual.simulation import cost_model
from serving.virtual.supernode import Supernode
from tests.fakes.virtual_loop import VirtualLoop
from tests.virtual.core.case import config, workload
from tests.virtual.core.live_experts import LiveExperts

RANKS, EXPERTS, LAYERS, SLICE_S, SLICES = 4, 8, 5, 2.0, 24
MODEL = Path(__file__).parents[3] / "deploy" / "models" / "storyteller"


def recorded() -> list[list[TraceSlice]]:
    """[number] Slices of ranks: other experts are popular after half of the time, and all slices differ."""
    draw, found = Random(5), []
    for number in range(SLICES):
        topic = Random(1 if number < SLICES // 2 else 2)
        weights = [[topic.lognormvariate(0.0, 1.0) for _ in range(EXPERTS)] for _ in range(LAYERS)]
        rows = [tuple(tuple(int(one * draw.uniform(80, 120)) for one in row) for row in weights) for _ in range(RANKS)]
        found.append([TraceSlice(number * SLICE_S, rank, own) for rank, own in enumerate(rows)])
    return found


def played(trace: Path, **experts: Any) -> Supernode:
    """A supernode whose only decode instance follows the trace to its end."""
    settings = config(
        model={"path": MODEL, "name": "storyteller"}, simulation={"routing": str(trace), "drafts": 0},
        decode={"npus_per_instance": RANKS // 2, "max_sequences": 64}, prefill={"replicas": 1, "npus_per_instance": 1},
        experts=experts,
    )  # fmt: skip
    node = Supernode(settings, cost_model(settings), 0)
    for pool in ("prefill", "decode"):
        node.start_instance(pool)
    node.feed(workload([(0.2 * n, 64, 200) for n in range(int(SLICES * SLICE_S / 0.2) + 20)]))
    node.queue.run(SLICE_S * SLICES)
    return node


def even(at: Any, slices: list[TraceSlice]) -> float:
    """Balancedness of a map under a slice's load, mean over layers."""
    found = []
    for layer, one in enumerate(at.layers):
        load = [sum(each.rows[layer][expert] for each in slices) for expert in range(EXPERTS)]
        found.append(balancedness(rank_loads(one, load, RANKS)))
    return sum(found) / len(found)


@pytest.mark.parametrize("policy", ["time_sliced", "global"])
def test_the_same_trace_moves_the_same_experts_live_and_in_virtual_time(tmp_path: Path, policy: Any) -> None:
    trace, file = recorded(), tmp_path / "routing.jsonl"
    head = TraceHead("decode#a", LAYERS, EXPERTS, SLICE_S)
    file.write_bytes(b"".join(trace_lines(head, [one for each in trace for one in each])))
    rules = ExpertRules(policy, 5 * SLICE_S, 5, 0.05, 1e6 * MIB)
    node = played(file, redundant=1, policy=policy, window_s=rules.window_s, slices=rules.slices, move_mib_per_s=1e6)
    assert node.experts is not None
    group = node.experts.of(node.decodes[0].name)
    live = LiveExperts(rules, RANKS, 1, LAYERS, EXPERTS, expert_bytes(node.cost))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        maps = runner.run(live.play(trace, SLICE_S))
    shown, simulated = (core.journal.shown(0.0) for core in (live.moves.experts, group.core))
    assert decisions(shown) == decisions(simulated)
    assert len(simulated["rebalances"]) >= 2
    ledger = group.core.ledger
    assert ledger is not None
    assert even(maps[-1], trace[-1]) == pytest.approx(even(ledger.map, trace[-1]), abs=0.02)
    assert even(ledger.map, trace[-1]) > even(maps[0], trace[-1])


def expert_bytes(cost: CostModel) -> int:
    return round(cost.shape.expert_weights * cost.shape.formats.experts.bytes)


def decisions(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Rebalances and moves, without their times."""
    timed = ("at_s", "seconds", "map_version")
    return [
        {key: value for key, value in one.items() if key not in timed}
        for one in (*shown["rebalances"], *shown["moves"])
    ]
