"""Balance of expert placements on load that they were not planned for: real routing of a model, and a synthetic layer.

The model reads pieces of each text; its gates' choices are counted. Placements are planned on the first half of the
pieces and judged on the second: mean over largest of the ranks' tokens, per layer. Four ranks with one redundant slot
each; `even` splits an expert's tokens evenly over its copies, otherwise weights are those of the map.

The synthetic layer has 256 experts on 32 ranks with nine slots each; popularity follows Zipf's law. It stays, or a
tenth of the experts change theirs in each of twelve slices.

  python -m tests.benchmarks.bench_expert_placement [--text NAME=FILE]... [--pieces N]

Nothing is timed: the figures are the same on any machine.
"""

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from serving.experts.core.deepseek import GlobalPlacement, HierarchicalPlacement
from serving.experts.core.load import LayerLoad, total
from serving.experts.core.placement import GroupShape, PlacementPolicy, StaticPlacement
from serving.experts.core.split import balancedness, rank_loads, split
from serving.experts.core.time_sliced import TimeSlicedPlacement
from serving.gateway.api.tokenizer import Tokenizer
from serving.ids import BlockId, SequenceId
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.experts import ExpertLayer
from serving.model.gate import Gate, Routing
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.values.step_plan import SequenceStep, StepPlan
from tests.benchmarks.conditions import ROOT, Figure, checkpoint, conditions, make_parser, report, show_conditions

PIECE_TOKENS, BLOCK_TOKENS = 192, 16
FOUR_RANKS = GroupShape((3,) * 4, (0, 0, 1, 1))
ZIPF_RANKS = GroupShape((9,) * 32, tuple(rank // 8 for rank in range(32)))
ZIPF_EXPERTS, ZIPF_SLICES, ZIPF_TOKENS = 256, 12, 40_000
GOAL, WORST_GOAL = 0.93, 0.88
DOCS = f"docs={ROOT / 'docs' / 'architecture.md'}"


class CountingGate:
    """A gate that counts what it chooses."""

    def __init__(self, gate: Gate, experts: int) -> None:
        self.gate = gate
        self.counts = torch.zeros(experts, dtype=torch.int64)

    def __call__(self, x: torch.Tensor) -> Routing:
        """Route and count."""
        routing = self.gate(x)
        self.counts += torch.bincount(routing.experts.flatten(), minlength=len(self.counts))
        return routing


def routed(folder: Path, texts: dict[str, str], count: int) -> dict[str, list[LayerLoad]]:
    """Tokens that the model's gates send to each expert, {text: [layer][piece][expert]}."""
    model = load_model(folder, dtype="float32")
    tokenizer = Tokenizer.from_folder(folder)
    executor = TorchExecutor(model, KvCache(model.config, 64, BLOCK_TOKENS, model.dtype, model.device))
    table = [BlockId(block) for block in range(-(-PIECE_TOKENS // BLOCK_TOKENS))]
    found = {}
    with counting(model.blocks) as gates:
        for name, text in texts.items():
            rows: list[list[tuple[int, ...]]] = [[] for _ in gates]
            for number, ids in enumerate(pieces(tokenizer.encode(text, add_special_tokens=False), count)):
                before = [gate.counts.tolist() for gate in gates]
                executor.execute(StepPlan(number, (SequenceStep(SequenceId(name), ids, 0, table, None),)))
                for row, gate, old in zip(rows, gates, before, strict=True):
                    row.append(tuple(now - then for now, then in zip(gate.counts.tolist(), old, strict=True)))
            found[name] = [tuple(row) for row in rows]
    return found


@contextmanager
def counting(blocks: Sequence) -> Iterator[list[CountingGate]]:
    """Gates of all layers with experts, counting while this lasts."""
    layers = [block.feed for block in blocks if isinstance(block.feed, ExpertLayer)]
    gates = [CountingGate(layer.gate, layer.num_experts) for layer in layers]
    for layer, gate in zip(layers, gates, strict=True):
        layer.gate = gate  # type: ignore[assignment]
    try:
        yield gates
    finally:
        for layer, gate in zip(layers, gates, strict=True):
            layer.gate = gate.gate


def pieces(ids: Sequence[int], count: int) -> list[Sequence[int]]:
    """Pieces of a text, evenly spread over it."""
    size = min(PIECE_TOKENS, len(ids) // count)
    return [ids[number * len(ids) // count :][:size] for number in range(count)]


def zipf_layer(changing: int) -> LayerLoad:
    """Tokens of a synthetic layer, [slice][expert]; so many experts change their popularity with each slice."""
    rng = random.Random(7)
    popular = [1 / (rank + 1) for rank in range(ZIPF_EXPERTS)]
    rng.shuffle(popular)
    rows = []
    for _ in range(ZIPF_SLICES):
        changed = rng.sample(range(ZIPF_EXPERTS), changing)
        values = [popular[expert] for expert in changed]
        rng.shuffle(values)
        for expert, value in zip(changed, values, strict=True):
            popular[expert] = value
        counts = [0] * ZIPF_EXPERTS
        for expert in rng.choices(range(ZIPF_EXPERTS), popular, k=ZIPF_TOKENS):
            counts[expert] += 1
        rows.append(tuple(counts))
    return tuple(rows)


def judged(layers: Sequence[LayerLoad], policy: PlacementPolicy, shape: GroupShape, *, even: bool) -> list[float]:
    """Balancedness of each layer on the second half, planned on the first."""
    found = []
    for load in layers:
        experts, half = len(load[0]), len(load) // 2
        placed = policy.place(load[:half], experts, shape)
        one = split(placed, (0,) * experts if even else total(load[:half], experts))
        found.append(balancedness(rank_loads(one, total(load[half:], experts), len(shape.slots))))
    return found


def policies(groups: int) -> dict[str, tuple[PlacementPolicy, bool]]:
    """Policies, and whether their copies share evenly."""
    return {
        "as numbered": (StaticPlacement(), True),
        "global, even": (GlobalPlacement(), True),
        "global": (GlobalPlacement(), False),
        "hierarchical": (HierarchicalPlacement(groups), False),
        "time_sliced, even": (TimeSlicedPlacement(), True),
        "time_sliced": (TimeSlicedPlacement(), False),
    }


def figures(name: str, layers: Sequence[LayerLoad], shape: GroupShape, groups: int, *, goal: bool) -> Iterator[Figure]:
    """Mean over layers, and the worst layer, of every policy."""
    for policy, (placement, even) in policies(groups).items():
        values = judged(layers, placement, shape, even=even)
        aims = goal and policy == "time_sliced"
        yield Figure(f"{name}, {policy}", "mean/max", (statistics.mean(values),), GOAL if aims else None, at_most=False)
        if len(values) > 1:
            worst = WORST_GOAL if aims else None
            yield Figure(f"{name}, {policy}: worst layer", "mean/max", (min(values),), worst, at_most=False)


def main() -> int:
    """Measure and print."""
    parser = make_parser("bench_expert_placement", __doc__, 1)
    parser.add_argument("--text", action="append", metavar="NAME=FILE", help="what the model reads (default: a page)")
    parser.add_argument("--pieces", type=int, default=24, metavar="N", help="pieces of each text (default 24)")
    arguments = parser.parse_args()
    named = (one.partition("=") for one in arguments.text or [DOCS])
    texts = {name: Path(file).read_text(encoding="utf-8", errors="ignore") for name, _, file in named}
    with checkpoint(arguments.model) as folder:
        found = conditions(folder, pieces=arguments.pieces, tokens_each=PIECE_TOKENS)
        show_conditions(found)
        loads = routed(folder, texts, arguments.pieces)
    rows = [one for name, layers in loads.items() for one in figures(name, layers, FOUR_RANKS, 4, goal=True)]
    for name, changing in (("zipf", 0), ("zipf, drifting", ZIPF_EXPERTS // 10)):
        rows += figures(name, [zipf_layer(changing)], ZIPF_RANKS, 8, goal=False)
    report("expert_placement", found, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
