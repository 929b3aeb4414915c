"""Figure 22: one drafted token per step."""

from hardware.cost import DecodeLoad
from hardware.cost.row_kind import RowKind
from serving.tools.paper.decode_bench import DecodeCase, measure_decode
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Curve, Findings, How, Plot, Row
from serving.tools.paper.setting import Setting

_CONTEXT, _OUTPUT = 4096, 256
_SWEEP = (8, 24, 48, 96, 128)
_DIES = (32, 8)


def run(setting: Setting) -> Findings:
    """Throughput with and without over the batch; tokens per step; one layer at batch 96."""
    gains, per_step = [], 0.0
    for batch in _SWEEP:
        with_, without = (
            measure_decode(
                setting.cost,
                DecodeCase(
                    batch, _CONTEXT, _OUTPUT, drafts=drafts, seed=setting.seed, sampled_dies=setting.size(*_DIES)
                ),
            )
            for drafts in (1, 0)
        )
        gains.append(without.tpot_s / with_.tpot_s)
        if batch == 96:
            per_step = with_.tokens_per_step
    layers = {
        drafts: setting.cost.decode.layers_s(DecodeLoad(48, 48 * _CONTEXT, None, 320, drafts, True), microbatch=True)[0]
        for drafts in (1, 0)
    }
    a, b = "CloudMatrix-Infer, Figure 22a", "CloudMatrix-Infer 5.4.2, Figure 22b"
    rows = (
        Row("gain-most", "with / without, batch 8", 1.49, max(gains), "x", How.RUN, a, RowKind.FITTED, headline=True),
        Row("gain-least", "with / without, batch 128", 1.06, min(gains), "x", How.RUN, a, RowKind.FITTED,
            headline=True),
        Row("tokens", "tokens per step and sequence", 1.7, per_step, "tokens", How.RUN, b, RowKind.READ_BACK),
        Row("layer-on", "layer, batch 96", 1260, layers[1] * 1e6, "us", How.MODEL, b, RowKind.FITTED, headline=True),
        Row("layer-off", "layer, batch 96, off", 874, layers[0] * 1e6, "us", How.MODEL, b, RowKind.FITTED,
            headline=True),
        Row("layer-ratio", "layer with / without", 1.44, layers[1] / layers[0], "x", How.MODEL, b, RowKind.DERIVED),
    )  # fmt: skip
    plot = Plot(
        "throughput with / without a drafted token, 4K + 256", "sequences per NPU", "x",
        (
            Curve("ours", _SWEEP, gains),
            Curve("published range", (_SWEEP[0], _SWEEP[-1]), (1.49, 1.06), published=True),
        ),
        (("no gain", 1.0),),
    )  # fmt: skip
    note = "The paper gives the range and says that it falls with the batch; that its ends are batch 8 and 128 is ours."
    return Findings(rows, (note,), (plot,))


EXPERIMENT = Experiment(
    "fig22",
    "One drafted token per step (MTP)",
    "live decode engines in virtual time, 32 of 320 dies, with 70 % of drafts accepted, and without drafts",
    run,
    1.5,
    0.4,
)
