"""Tables 8 and 9: the MLA operator, bound by compute and by memory."""

from hardware.cost import DecodeLoad
from hardware.cost.row_kind import RowKind
from hardware.spec.catalog import DIE_FP16
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row, quoted
from serving.tools.paper.setting import Setting

_CONTEXT = 4096


def run(setting: Setting) -> Findings:
    """Share of both peaks that the cost model's core attention reaches."""
    cost = setting.cost
    device, attention = cost.device, cost.shape.attention
    load = DecodeLoad(48, 48 * _CONTEXT, None, 320, 1, False)
    half = cost.decode.half_batch(load, 1)
    flops = 2 * load.context_tokens * attention.decode_core_flops
    nbytes = load.context_tokens * attention.cached_values * 2
    used = 100 * flops / half.core_c / DIE_FP16.value
    rate = nbytes / half.core_w / 1e9
    peak = device.die.hbm_bytes_per_s / 1e9
    one, two = "CloudMatrix-Infer, Table 8", "CloudMatrix-Infer, Table 9"
    return Findings(
        (
            Row(
                "compute",
                "CANN MLA, bound by compute",
                65.4,
                used,
                "% of FP16 peak",
                How.MODEL,
                one,
                kind=RowKind.READ_BACK,
            ),
            quoted("flashmla-compute", "FlashMLA on H800", 66.7, "% of FP16 peak", one),
            Row("memory-rate", "CANN MLA, bound by memory", 1346, rate, "GB/s", How.MODEL, two, RowKind.READ_BACK),
            Row(
                "memory",
                "CANN MLA, bound by memory",
                84.1,
                100 * rate / peak,
                "% of HBM rate",
                How.MODEL,
                two,
                kind=RowKind.READ_BACK,
            ),
            quoted("flashmla-memory-rate", "FlashMLA on H800", 3000, "GB/s", two),
            quoted("flashmla-memory", "FlashMLA on H800", 89.6, "% of HBM rate", two),
        ),
        ("Both efficiencies are the cost model's inputs.",),
    )


EXPERIMENT = Experiment(
    "table8", "The MLA operator (tables 8 and 9)", "core attention of the cost model, 48 sequences of 4K on a die", run
)
