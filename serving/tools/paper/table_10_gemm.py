"""Table 10: INT8 matrix products on one die."""

from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row
from serving.tools.paper.setting import Setting

_SOURCE = "CloudMatrix-Infer, Table 10"
# Groups, M, N, K, GB/s, utilisation [%].
_PUBLISHED = (
    (4, 7168, 4096, 4096, 260, 79.4),
    (4, 2048, 7168, 4096, 325, 77.4),
    (4, 7168, 4096, 8192, 195, 82.7),
    (4, 2048, 7168, 8192, 266, 81.1),
    (8, 7168, 4096, 4096, 261, 79.6),
    (8, 2048, 7168, 4096, 327, 77.9),
)


def run(setting: Setting) -> Findings:
    """One utilisation for all shapes, which is what steps are costed with."""
    die, calibration = setting.cost.device.die, setting.cost.device.calibration
    rows: list[Row] = []
    for groups, m, n, k, rate, used in _PUBLISHED:
        seconds = 2 * groups * m * n * k / (die.int8_flops_per_s * calibration.gemm_utilisation)
        traffic = groups * (m * k + k * n + 2 * m * n)
        key, label = f"{groups}x{m}x{n}x{k}", f"{groups} groups of {m} x {n} x {k}"
        rows.append(
            Row(f"rate-{key}", label, rate, traffic / seconds / 1e9, "GB/s", How.MODEL, _SOURCE, RowKind.FITTED)
        )
        ours = 100 * calibration.gemm_utilisation
        rows.append(Row(f"used-{key}", label, used, ours, "% of INT8 peak", How.MODEL, _SOURCE, RowKind.FITTED))
    note = "The cost model has one utilisation, the mean of the six; traffic counts each operand once."
    return Findings(sorted(rows, key=lambda row: row.unit), (note,))


EXPERIMENT = Experiment("table10", "INT8 matrix products on one die", "time at the cost model's utilisation", run)
