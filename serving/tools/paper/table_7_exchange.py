"""Table 7: dispatch and combine over the degree of expert parallelism."""

from hardware.cost.exchange import combine_line, dispatch_line
from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Curve, Findings, How, Plot, Row, quoted
from serving.tools.paper.setting import Setting

_SOURCE = "CloudMatrix-Infer, Table 7"
_TOKENS, _COPIES = 128, 8
_DISPATCH_BYTES, _COMBINE_BYTES = 7_680, 14_336
_FLOOR_S = 6e-6
"""Of each latency that carries no payload, for the bandwidth column.

Source: the printed latencies times the printed bandwidths are the payload and what passes in about 6 us.
"""
_DEGREES = (8, 16, 32, 64, 128, 256)
# Latency [us] and bandwidth [GB/s] of each degree.
_CANN = {
    "dispatch": ((116, 131, 133, 141, 152, 152), (71, 63, 62, 58, 54, 54)),
    "combine": ((118, 132, 146, 150, 150, 149), (131, 117, 105, 103, 103, 103)),
}
_DEEPEP = {
    "dispatch": ((163, 173, 182, 186, 192, 194), (46, 43, 41, 40, 39, 39)),
    "combine": ((318, 329, 350, 353, 369, 360), (46, 44, 41, 41, 39, 40)),
}


def run(setting: Setting) -> Findings:
    """The cost model's table at its own degrees, and the line that it uses between and beyond them."""
    table = setting.cost.device.experts
    rows: list[Row] = []
    plots: list[Plot] = []
    for operation, line, message in (
        ("dispatch", dispatch_line(table), _DISPATCH_BYTES),
        ("combine", combine_line(table), _COMBINE_BYTES),
    ):
        payload = _TOKENS * _COPIES * message
        for degree, latency, rate in zip(_DEGREES, *_CANN[operation], strict=True):
            label = f"{operation}, EP{degree}"
            trend = line.trend_s(degree)
            rows.append(
                Row(
                    f"{operation}-{degree}", label, latency, line.seconds(degree) * 1e6, "us", How.MODEL, _SOURCE,
                    kind=RowKind.READ_BACK,
                )
            )  # fmt: skip
            rows.append(
                Row(
                    f"{operation}-line-{degree}", label, latency, trend * 1e6, "us, line alone", How.MODEL, _SOURCE,
                    kind=RowKind.FITTED,
                )
            )  # fmt: skip
            ours = payload / (line.seconds(degree) - _FLOOR_S) / 1e9
            rows.append(
                Row(
                    f"{operation}-rate-{degree}",
                    label,
                    rate,
                    ours,
                    "GB/s per rank",
                    How.MODEL,
                    _SOURCE,
                    kind=RowKind.FITTED,
                )
            )
        for degree, latency, rate in zip(_DEGREES, *_DEEPEP[operation], strict=True):
            label = f"{operation}, EP{degree}, DeepEP on H800"
            key = f"{operation}-deepep"
            rows.append(quoted(f"{key}-{degree}", label, latency, "us", _SOURCE))
            rows.append(quoted(f"{key}-rate-{degree}", label, rate, "GB/s per rank", _SOURCE))
        plots.append(
            Plot(
                f"{operation}, batch 128 per rank", "EP degree", "us",
                (
                    Curve("ours, line alone", _DEGREES, [line.trend_s(degree) * 1e6 for degree in _DEGREES]),
                    Curve("published", _DEGREES, _CANN[operation][0], published=True),
                ),
            )
        )  # fmt: skip
    note = (
        "At the published degrees the cost model uses the published latencies themselves; `line alone` is its formula "
        "without them, as it is used between and beyond. EP320 was never published: the model takes EP256's."
    )
    return Findings(sorted(rows, key=lambda row: row.unit), (note,), plots)


EXPERIMENT = Experiment(
    "table7", "Dispatch and combine over the EP degree", "the cost model's exchange times at batch 128 per rank", run
)
