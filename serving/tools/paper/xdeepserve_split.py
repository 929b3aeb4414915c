"""xDeepServe's disaggregated decode: 480 dies for attention, 288 for experts."""

from hardware.cost.disaggregated import HALVES, DisaggregatedStep
from hardware.cost.loads import DecodeLoad
from hardware.cost.published_other import experts_apart
from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row
from serving.tools.paper.setting import Setting
from serving.tools.paper.xdeepserve_peak import ACCEPTANCE, CONTEXT, with_its_kernel

_SOURCE = "xDeepServe 7.1"
_PER_DIE, _ATTENTION_DIES, _EXPERT_DIES = 96, 480, 288
_PUBLISHED_ATTENTION_S, _PUBLISHED_EXPERTS_S = 0.7e-3, 0.12e-3


def run(setting: Setting) -> Findings:
    """Stages and iteration: with our kernels, with its core attention, and with its own stage times."""
    load = DecodeLoad(_PER_DIE, _PER_DIE * CONTEXT, None, _ATTENTION_DIES + _EXPERT_DIES, 1, True)
    apart = experts_apart(setting.cost)
    ours = apart.stages(load, HALVES)
    its = experts_apart(with_its_kernel(setting.cost)).stages(load, HALVES)
    given = apart.stages(load, HALVES, _PUBLISHED_ATTENTION_S, _PUBLISHED_EXPERTS_S)
    rows = [
        Row("send", "attention to experts (A2E)", 172, ours.send_s * 1e6, "us", How.MODEL, _SOURCE, RowKind.READ_BACK),
        Row("experts", "experts", 120, ours.experts_s * 1e6, "us", How.MODEL, _SOURCE, RowKind.PREDICTED),
        Row("return", "experts to attention (E2A)", 193, ours.return_s * 1e6, "us", How.MODEL, _SOURCE,
            RowKind.READ_BACK),
        Row("attention", "attention, half batch and layer", 700, ours.attention_s * 1e6, "us", How.MODEL, _SOURCE,
            RowKind.FITTED, relation="~"),
        Row("attention-its", "the same, with its core attention", 700, its.attention_s * 1e6, "us", How.MODEL, _SOURCE,
            RowKind.FITTED, relation="~"),
    ]  # fmt: skip
    for suffix, label, step in (
        ("", "", ours), ("-its", ", with its core attention", its), ("-given", ", with its stage times", given),
    ):  # fmt: skip
        rows += _iteration(suffix, label, step, RowKind.DERIVED if suffix == "-given" else RowKind.FITTED)
    return Findings(
        sorted(rows, key=lambda row: row.unit),
        (
            "Sending and returning are the published times at the published batch, scaled with the batch; 2 ms for "
            "scheduling and 5 ms for the MTP layer are the paper's own. So only the experts' stage is predicted; with "
            "its stage times the iteration is the paper's own sum.",
            f"Ours is bound by {ours.bound}; with three domains the experts' turn comes every "
            f"{ours.turn_s * 1e6:.0f} us.",
        ),
    )


def _iteration(suffix: str, label: str, step: DisaggregatedStep, kind: RowKind) -> list[Row]:
    tpot_s = step.tpot_s(1 + ACCEPTANCE)
    npus = (_ATTENTION_DIES + _EXPERT_DIES) / 2
    rate = _PER_DIE * _ATTENTION_DIES / tpot_s / npus
    return [
        Row(f"iteration{suffix}", f"iteration{label}", 93, step.total_s * 1e3, "ms", How.MODEL, _SOURCE, kind),
        Row(f"tpot{suffix}", f"TPOT{label}", 49, tpot_s * 1e3, "ms", How.MODEL, _SOURCE, RowKind.DERIVED,
            headline=True),
        Row(f"rate{suffix}", f"one NPU{label}", 2400, rate, "tok/s", How.MODEL, _SOURCE, RowKind.DERIVED),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    "xds-split", "xDeepServe: attention and experts on different dies", "the cost model's split layout", run
)
