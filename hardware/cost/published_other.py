"""Published figures of matrix products, token exchange, model loading, and of xDeepServe on the same machine."""

from collections.abc import Callable
from dataclasses import replace

from hardware.cost.cost_model import CostModel
from hardware.cost.device_model import DeviceModel
from hardware.cost.disaggregated import HALVES, ApartDecodeStep
from hardware.cost.exchange import combine_line, dispatch_line
from hardware.cost.loads import DecodeLoad
from hardware.cost.parallelism import Parallelism
from hardware.cost.published import PublishedRow, RowKind, prefill_load

_BF16_BYTES = 2


# --- INT8 matrix products -----------------------------------------------------------------------------------------
def _gemm(groups: int, m: int, n: int, k: int) -> Callable[[CostModel], float]:
    """Compulsory traffic of a grouped product over its time, in GB/s."""

    def predict(model: CostModel) -> float:
        utilisation = model.device.calibration.gemm_utilisation
        seconds = groups * 2 * m * n * k / (model.device.die.int8_flops_per_s * utilisation)
        return groups * (m * k + k * n + _BF16_BYTES * m * n) / seconds / 1e9

    return predict


_GEMM_TABLE = (
    (4, 7168, 4096, 4096, 260),
    (4, 2048, 7168, 4096, 325),
    (4, 7168, 4096, 8192, 195),
    (4, 2048, 7168, 8192, 266),
    (8, 7168, 4096, 4096, 261),
    (8, 2048, 7168, 4096, 327),
)
GEMM_ROWS = tuple(
    PublishedRow("gemm", f"INT8 product {g} x {m} x {n} x {k}", rate, "GB/s", "V2 Table 10", _gemm(g, m, n, k))
    for g, m, n, k, rate in _GEMM_TABLE
)


# --- dispatch and combine -----------------------------------------------------------------------------------------
def _dispatch(degree: int) -> Callable[[CostModel], float]:
    return lambda model: dispatch_line(model.device.experts).trend_s(degree) * 1e6


def _combine(degree: int) -> Callable[[CostModel], float]:
    return lambda model: combine_line(model.device.experts).trend_s(degree) * 1e6


def exchange_rows(device: DeviceModel) -> tuple[PublishedRow, ...]:
    """The measured table of a device against the straight line through it; steps use the table itself."""
    table = device.experts
    source = device.constants["experts.dispatch_s[0]"].source
    mixed = device.layout.decode_overlap == "hidden-communication"
    note = "up to two nodes, part of the traffic stays inside: no straight line; steps use the table" if mixed else ""
    tolerance = 0.15 if mixed else 0.05
    rows = []
    for degree, dispatch, combine in zip(table.degrees, table.dispatch_s, table.combine_s, strict=True):
        for name, seconds, predict in (("dispatch", dispatch, _dispatch), ("combine", combine, _combine)):
            title = f"{name}, EP{degree}"
            rows.append(
                PublishedRow("exchange", title, seconds * 1e6, "us", source, predict(degree), tolerance, note=note)
            )
    return tuple(rows)


# --- model loading ------------------------------------------------------------------------------------------------
_TABLE_2 = "V2 Table 2"


def _loading(
    name: str, published: float, unit: str, source: str, predict: Callable[[CostModel], float], kind: RowKind
) -> PublishedRow:
    return PublishedRow("loading", name, published, unit, source, predict, 0.01, kind)


LOADING_ROWS = (
    _loading(
        "cold start, 8 loaders, one bucket",
        2560,
        "s",
        _TABLE_2,
        lambda m: m.model_load_s("storage", 8),
        RowKind.DERIVED,
    ),
    _loading(
        "cold start, through the pool once", 320, "s", _TABLE_2, lambda m: m.model_load_s("storage"), RowKind.READ_BACK
    ),
    _loading("warm start", 5, "s", _TABLE_2, lambda m: m.model_load_s("pool"), RowKind.READ_BACK),
    _loading("switch, 12.5 % cached", 281, "s", _TABLE_2, lambda m: m.model_switch_s(0.125), RowKind.DERIVED),
    _loading(
        "hand-off of 4K tokens, one link",
        11.5,
        "ms",
        "V2 4.3.3: 288 MB at 25 GB/s",
        lambda m: m.handoff_s(m.kv_bytes(4096)) * 1e3,
        RowKind.DERIVED,
    ),
)


# --- xDeepServe ---------------------------------------------------------------------------------------------------
_XDS_CONTEXT = 3072
"""2K prompts, 2K outputs: 3K on average."""
_XDS_CORE_S = 0.218 * 93e-3 / 62
"""Core attention of one layer at 60 sequences: 21.8 % of a 93 ms iteration of 62 layers. Source: xDeepServe 7.1."""


def _with_its_kernel(model: CostModel) -> CostModel:
    """The same machine with xDeepServe's core attention, which is a quarter faster than CloudMatrix-Infer's."""
    flops = 60 * 2 * _XDS_CONTEXT * model.shape.attention.decode_core_flops
    utilisation = flops / _XDS_CORE_S / model.device.die.bf16_flops_per_s
    calibration = replace(model.device.calibration, core_utilisation=utilisation)
    return CostModel(replace(model.device, calibration=calibration), model.shape)


def _colocated(model: CostModel) -> float:
    """Iteration at 60 sequences per die, half batches off: none are reported."""
    return model.decode_step_s(DecodeLoad(60, 60 * _XDS_CONTEXT, None, 288, 1, False)) * 1e3


def experts_apart(model: CostModel) -> ApartDecodeStep:
    """Steps of the same machine with 480 dies for attention and 288 for experts, in three domains, by trampolines."""
    return ApartDecodeStep(model.device, model.shape, Parallelism(expert_dies=288, domains=3, trampolines="ranks"))


_SPLIT_LOAD = DecodeLoad(96, 96 * _XDS_CONTEXT, None, 768, 1, True)


def _split(model: CostModel) -> float:
    return experts_apart(model).stages(_SPLIT_LOAD, HALVES).total_s * 1e3


def _split_measured(model: CostModel) -> float:
    return experts_apart(model).stages(_SPLIT_LOAD, HALVES, 0.7e-3, 0.12e-3).total_s * 1e3


def _split_stage(name: str) -> Callable[[CostModel], float]:
    """One stage of the mean expert die [us]: published stage times are means."""
    even = replace(_SPLIT_LOAD, imbalance=1.0)
    return lambda model: getattr(experts_apart(model).stages(even, HALVES), name) * 1e6


def _split_attention(model: CostModel) -> float:
    return experts_apart(model).stages(_SPLIT_LOAD, HALVES).attention_s * 1e3


_KERNEL = "its core attention is a quarter faster (327 us where CloudMatrix-Infer's 246 TFLOPS give 417 us)"


def _check(
    name: str, published: float, predict: Callable[[CostModel], float], tolerance: float, kind: RowKind, note: str = ""
) -> PublishedRow:
    unit = "us" if published > 100 else "ms"
    return PublishedRow("xDeepServe", name, published, unit, "xDeepServe 7.1", predict, tolerance, kind, note)


XDEEPSERVE_ROWS = (
    _check("EP288, 60 per die, 3K", 93, _colocated, 0.1, RowKind.PREDICTED, _KERNEL),
    _check("the same with its core attention", 93, lambda m: _colocated(_with_its_kernel(m)), 0.05, RowKind.FITTED),
    _check("split 480 : 288, 96 per die", 93, _split, 0.15, RowKind.FITTED, _KERNEL),
    _check("the same with its core attention", 93, lambda m: _split(_with_its_kernel(m)), 0.05, RowKind.FITTED),
    _check("the same with its stage times", 93, _split_measured, 0.01, RowKind.DERIVED),
    _check("split: attention to experts", 172, _split_stage("send_s"), 0.05, RowKind.PREDICTED),
    _check("split: experts", 120, _split_stage("experts_s"), 0.05, RowKind.FITTED),
    _check("split: experts to attention", 193, _split_stage("return_s"), 0.05, RowKind.PREDICTED),
    _check("split: attention, per half and layer", 0.7, _split_attention, 0.18, RowKind.FITTED, _KERNEL),
    _check(
        "the same with its core attention",
        0.7,
        lambda m: _split_attention(_with_its_kernel(m)),
        0.07,
        RowKind.FITTED,
        "48 sequences' products and sending, each a few per cent over",
    ),
)
"""Split rows take its times of scheduling and of the MTP layer: constants of `disaggregated`. Exchanges are predicted
from CloudMatrix-Infer's Tables 1 and 7. The experts' stage overlaps its vector work with the products of other experts
of the die: this form was chosen in view of its row."""


# Published figures of DeepSeek-V3/R1 on Hopper GPUs.

_SGL = "SGLang, large-scale EP on 96 H100"
_PROFILE = "DeepSeek profile-data"


def _prefill(prompt: float, *, perfect: bool) -> Callable[[CostModel], float]:
    """Tokens per second of one GPU; 32 GPUs of 16,384 tokens each."""

    def predict(model: CostModel) -> float:
        load = prefill_load(prompt, npus=32, perfect=perfect, dies=32)
        return 16_384 / model.prefill_step_s(load)

    return predict


def _decode(batch: float, context: float, dies: int) -> Callable[[CostModel], float]:
    """Tokens per second of one GPU without drafts."""
    return lambda model: batch / model.tpot_s(batch, context, dies=dies, drafts=0)


def _decode_mtp(batch: float, context: float, dies: int, acceptance: float) -> Callable[[CostModel], float]:
    return lambda model: batch / model.tpot_s(batch, context, dies=dies, drafts=1, acceptance=acceptance)


H100_ROWS = (
    PublishedRow("prefill", "tokens/s, 4K, perfect EPLB", 7417, "tok/s", _SGL, _prefill(4096, perfect=True)),
    PublishedRow("prefill", "tokens/s, 1K, default EPLB", 7209, "tok/s", _SGL, _prefill(1024, perfect=False)),
    PublishedRow("prefill", "tokens/s, 2K, default EPLB", 6818, "tok/s", _SGL, _prefill(2048, perfect=False)),
    PublishedRow("prefill", "tokens/s, 4K, default EPLB", 6288, "tok/s", _SGL, _prefill(4096, perfect=False)),
    PublishedRow("decode", "tokens/s, batch 256, 2K, EP72", 2785, "tok/s", _SGL, _decode(256, 2050, 72)),
    PublishedRow(
        "decode",
        "tokens/s, batch 128, 4K, EP72, simulated MTP",
        2172,
        "tok/s",
        _SGL,
        _decode_mtp(128, 4050, 72, 0.6),
        tolerance=0.25,
        kind=RowKind.PREDICTED,
        note="how its MTP was simulated is not published in detail",
    ),
)
H800_ROWS = (
    PublishedRow(
        "prefill", "tokens/s, 4K, balanced experts, EP32", 7839, "tok/s", _PROFILE, _prefill(4096, perfect=True)
    ),
    PublishedRow("decode", "tokens/s, batch 128, 4K, EP128", 2325, "tok/s", _PROFILE, _decode(128, 4096, 128)),
)
