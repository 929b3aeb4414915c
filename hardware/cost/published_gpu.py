"""Published figures of DeepSeek-V3/R1 on Hopper GPUs."""

from collections.abc import Callable

from hardware.cost.cost_model import CostModel
from hardware.cost.published import PublishedRow, prefill_load
from hardware.cost.row_kind import RowKind

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
