"""Tables 7, 8, 9 and 10: dispatch and combine, the MLA operator, INT8 matrix products."""

from hardware.cost import DecodeLoad
from hardware.cost.exchange import combine_line, dispatch_line
from hardware.cost.published import RowKind
from hardware.spec.catalog import DIE_FP16
from serving.tools.paper.experiment import Curve, Experiment, Findings, How, Plot, Row, Setting, quoted

# Table 7: dispatch and combine over the degree of expert parallelism.

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


def run_table_7(setting: Setting) -> Findings:
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


TABLE_7 = Experiment(
    "table7",
    "Dispatch and combine over the EP degree",
    "the cost model's exchange times at batch 128 per rank",
    run_table_7,
)


# Tables 8 and 9: the MLA operator, bound by compute and by memory.

_CONTEXT = 4096


def run_table_8(setting: Setting) -> Findings:
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


TABLE_8 = Experiment(
    "table8",
    "The MLA operator (tables 8 and 9)",
    "core attention of the cost model, 48 sequences of 4K on a die",
    run_table_8,
)


# Table 10: INT8 matrix products on one die.

_TABLE_10_SOURCE = "CloudMatrix-Infer, Table 10"
# Groups, M, N, K, GB/s, utilisation [%].
_PUBLISHED = (
    (4, 7168, 4096, 4096, 260, 79.4),
    (4, 2048, 7168, 4096, 325, 77.4),
    (4, 7168, 4096, 8192, 195, 82.7),
    (4, 2048, 7168, 8192, 266, 81.1),
    (8, 7168, 4096, 4096, 261, 79.6),
    (8, 2048, 7168, 4096, 327, 77.9),
)


def run_table_10(setting: Setting) -> Findings:
    """One utilisation for all shapes, which is what steps are costed with."""
    die, calibration = setting.cost.device.die, setting.cost.device.calibration
    rows: list[Row] = []
    for groups, m, n, k, rate, used in _PUBLISHED:
        seconds = 2 * groups * m * n * k / (die.int8_flops_per_s * calibration.gemm_utilisation)
        traffic = groups * (m * k + k * n + 2 * m * n)
        key, label = f"{groups}x{m}x{n}x{k}", f"{groups} groups of {m} x {n} x {k}"
        rows.append(
            Row(
                f"rate-{key}", label, rate, traffic / seconds / 1e9, "GB/s", How.MODEL, _TABLE_10_SOURCE, RowKind.FITTED
            )
        )
        ours = 100 * calibration.gemm_utilisation
        rows.append(
            Row(f"used-{key}", label, used, ours, "% of INT8 peak", How.MODEL, _TABLE_10_SOURCE, RowKind.FITTED)
        )
    note = "The cost model has one utilisation, the mean of the six; traffic counts each operand once."
    return Findings(sorted(rows, key=lambda row: row.unit), (note,))


TABLE_10 = Experiment(
    "table10", "INT8 matrix products on one die", "time at the cost model's utilisation", run_table_10
)
