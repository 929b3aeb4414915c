"""Table 4: decode throughput compared with other systems."""

from hardware.cost.row_kind import RowKind
from serving.tools.paper.decode_bench import DecodeCase, measure_decode
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row, quoted
from serving.tools.paper.setting import Setting

_SOURCE = "CloudMatrix-Infer, Table 4"
NPU_INT8_TERA = 1504.0
"""Peak of one NPU that the paper divides by [TOPS]."""
_QUOTED = (
    ("deepseek-blog", "DeepSeek on H800, blog", 1850.0, 0.93),
    ("deepseek-profile", "DeepSeek on H800, profile", 2325.0, 1.17),
    ("sglang", "SGLang on H100, simulated MTP", 2172.0, 1.10),
)


def run(setting: Setting) -> Findings:
    """Our row, measured; the others quoted."""
    case = DecodeCase(96, 4096, 256, seed=setting.seed, sampled_dies=setting.size(320, 32))
    found = measure_decode(setting.cost, case)
    rows = [
        Row("tpot", "CloudMatrix-Infer, batch 96, TPOT", 49.4, found.tpot_s * 1e3, "ms", How.RUN, _SOURCE,
            RowKind.FITTED),
        Row("rate", "CloudMatrix-Infer", 1943, found.tokens_per_s, "tok/s per NPU", How.RUN, _SOURCE, RowKind.DERIVED),
        Row(
            "efficiency", "CloudMatrix-Infer", 1.29, found.tokens_per_s / NPU_INT8_TERA, "tok/s per TFLOPS", How.RUN,
            _SOURCE, RowKind.DERIVED,
        ),
    ]  # fmt: skip
    for key, label, rate, efficiency in _QUOTED:
        rows.append(quoted(f"{key}-rate", label, rate, "tok/s per NPU", _SOURCE))
        rows.append(quoted(f"{key}-efficiency", label, efficiency, "tok/s per TFLOPS", _SOURCE))
    return Findings(rows)


EXPERIMENT = Experiment(
    "table4",
    "Decode throughput beside other systems",
    "live decode engines of 320 dies kept full in virtual time; other systems are quoted",
    run,
    4.5,
    0.4,
)
