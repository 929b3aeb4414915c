"""Figure 21: two microbatches in prefill."""

from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.prefill_bench import PrefillCase, measure_prefill
from serving.tools.paper.rows import Curve, Findings, How, Plot, Row
from serving.tools.paper.setting import Setting

_LENGTHS = (1024, 2048, 4096, 8192)


def run(setting: Setting) -> Findings:
    """Throughput with and without, over the prompt length."""
    rates = {
        on: [
            measure_prefill(setting.cost, PrefillCase(prompt=prompt, microbatch=on, batches=2)).tokens_per_s
            for prompt in _LENGTHS
        ]
        for on in (True, False)
    }
    gains = [with_ / without for with_, without in zip(rates[True], rates[False], strict=True)]
    source = "CloudMatrix-Infer, Figure 21a"
    rows = (
        Row("gain-most", "throughput with / without, largest", 1.31, max(gains), "x", How.RUN, source, RowKind.FITTED,
            headline=True),
        Row("gain-least", "throughput with / without, smallest", 1.23, min(gains), "x", How.RUN, source, RowKind.FITTED,
            headline=True),
        Row("layer", "layer time with / without, 4K prompts", 0.76, 1 / gains[2], "x", How.RUN,
            "CloudMatrix-Infer, Figure 21b", kind=RowKind.FITTED),
    )  # fmt: skip
    note = (
        "The paper gives the range over four prompt lengths, not the lengths; ours is over 1K, 2K, 4K and 8K: "
        + ", ".join(f"{prompt // 1024}K x{gain:.2f}" for prompt, gain in zip(_LENGTHS, gains, strict=True))
        + "."
    )
    plot = Plot(
        "prefill throughput, perfect EPLB", "prompt tokens", "tok/s per NPU",
        (
            Curve("two microbatches", _LENGTHS, rates[True]),
            Curve("one", _LENGTHS, rates[False]),
            Curve("published", (4096,), (6688,), published=True),
        ),
    )  # fmt: skip
    return Findings(rows, (note,), (plot,))


EXPERIMENT = Experiment(
    "fig21",
    "Two microbatches in prefill",
    "live prefill engine on full steps in virtual time, with and without",
    run,
    1.0,
    1.0,
)
