"""Table 3: prefill throughput compared with other systems."""

from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.prefill_bench import PrefillCase, measure_prefill
from serving.tools.paper.rows import Findings, How, Row, quoted
from serving.tools.paper.setting import Setting
from serving.tools.paper.table_4_decode import NPU_INT8_TERA

_SOURCE = "CloudMatrix-Infer, Table 3"
_OURS = (("default", False, 5655.0, 3.76), ("perfect", True, 6688.0, 4.45))
_QUOTED = (
    ("deepseek-blog", "DeepSeek on H800, blog", 4026.0, 2.03),
    ("sglang-default", "SGLang on H100, default", 6288.0, 3.18),
    ("deepseek-profile", "DeepSeek on H800, profile", 7839.0, 3.96),
    ("sglang-perfect", "SGLang on H100, perfect EPLB", 7417.0, 3.75),
)


def run(setting: Setting) -> Findings:
    """Full steps of 4K prompts, with experts balanced as usual and ideally."""
    rows: list[Row] = []
    for key, perfect, rate, efficiency in _OURS:
        ours = measure_prefill(setting.cost, PrefillCase(perfect_balance=perfect, overlap=True)).tokens_per_s
        label = f"CloudMatrix-Infer, {key} EPLB"
        rows.append(
            Row(f"rate-{key}", label, rate, ours, "tok/s per NPU", How.RUN, _SOURCE, RowKind.FITTED, headline=True)
        )
        rows.append(
            Row(
                f"efficiency-{key}", label, efficiency, ours / NPU_INT8_TERA, "tok/s per TFLOPS", How.RUN, _SOURCE,
                RowKind.DERIVED,
            )
        )  # fmt: skip
    for key, label, rate, efficiency in _QUOTED:
        rows.append(quoted(f"{key}-rate", label, rate, "tok/s per NPU", _SOURCE))
        rows.append(quoted(f"{key}-efficiency", label, efficiency, "tok/s per TFLOPS", _SOURCE))
    room = setting.cost.hbm_plan("prefill", 32).instance_kv_tokens
    note = (
        "16,384 tokens for each of 16 NPUs are 262,144 a step. By our memory plan an instance has room for the KV of "
        f"{room:,} tokens; this experiment gives it what the paper's batch needs."
    )
    return Findings(rows, (note,) if room < 262_144 else ())


EXPERIMENT = Experiment(
    "table3",
    "Prefill throughput beside other systems",
    "a live prefill engine of 16 NPUs works off full steps of 4K prompts in virtual time; other systems are quoted",
    run,
    0.3,
    0.3,
)
