"""Figures 14 and 20: two microbatches on split cores in decode."""

from hardware.cost import CostModel, DecodeLoad
from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Curve, Findings, How, Plot, Row
from serving.tools.paper.setting import Setting

_CONTEXT = 4096
_GAINS = ((64, 1.058), (96, 1.094), (128, 1.069))
_SWEEP = tuple(range(8, 161, 8))


def gain(cost: CostModel, batch: int) -> float:
    """Throughput with microbatches over that without."""
    return cost.tpot_s(batch, _CONTEXT, microbatch=False) / cost.tpot_s(batch, _CONTEXT, microbatch=True)


def run(setting: Setting) -> Findings:
    """Gains over the batch, and one layer at batch 96."""
    cost = setting.cost
    load = DecodeLoad(48, 48 * _CONTEXT, None, 320, 1, True)
    half = cost.decode.half_batch(load, 2)
    both, alone = (cost.decode.layers_s(load, microbatch=on)[0] for on in (True, False))
    stream = "CloudMatrix-Infer 4.2.3, Figure 14b"
    rows = [
        Row(
            f"gain-{batch}", f"throughput with / without, batch {batch}", published, gain(cost, batch), "x", How.MODEL,
            "CloudMatrix-Infer, Figure 20a", kind=RowKind.FITTED, headline=True,
        )
        for batch, published in _GAINS
    ]  # fmt: skip
    rows += [
        Row("layer", "layer time with / without, batch 96", 0.90, both / alone, "x", How.MODEL,
            "CloudMatrix-Infer, Figure 20b", kind=RowKind.FITTED, relation="~"),
        Row("attention", "attention stream on 16 of 24 cores", 600, cost.decode.attention_s(half, 16 / 24) * 1e6, "us",
            How.MODEL, stream, RowKind.FITTED, relation="~"),
        Row("experts", "expert stream on 8 of 24 cores", 600, cost.decode.expert_s(half, 8 / 24) * 1e6, "us", How.MODEL,
            stream, RowKind.FITTED, relation="~"),
    ]  # fmt: skip
    plot = Plot(
        "throughput with / without microbatches, 4K context", "sequences per NPU", "x",
        (
            Curve("ours", _SWEEP, [gain(cost, batch) for batch in _SWEEP]),
            Curve("published", [b for b, _ in _GAINS], [g for _, g in _GAINS], published=True),
        ),
        (("no gain", 1.0),),
    )  # fmt: skip
    return Findings(rows, ("Gains are compared as factors.",), (plot,))


EXPERIMENT = Experiment(
    "fig20",
    "Two microbatches in decode (figures 14 and 20)",
    "decode steps of the cost model with and without them",
    run,
)
