"""Published values, and the model's predictions of them.

A row has its source, its tolerance (that of the fidelity tests), and the meaning of agreement. Rows of one group share
free parameters; see `calibrate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hardware.cost.cost_model import CostModel
from hardware.cost.loads import DecodeLoad, PrefillLoad

# Kinds of comparisons with published values: by what an agreement proves.


class RowKind(StrEnum):
    """How much the fit used of a published value.

    Only `PREDICTED` rows show the accuracy for unpublished values.
    """

    READ_BACK = "read back"
    """An input of the model, printed again: agreement proves only that it is kept."""
    FITTED = "fitted"
    """A constant was fitted or chosen in view of it, or a part of the result was an input, such as another value of
    the same measurement."""
    DERIVED = "derived"
    """Arithmetic on published values, or on another row, without content of its own to verify."""
    PREDICTED = "predicted"
    """No constant was fitted to it, chosen in view of it or taken from its measurement."""
    QUOTED = "quoted"
    """Another system's figure, repeated for comparison: we have none."""


# Published values, and the model's predictions of them.

Group = Literal["gemm", "exchange", "decode", "prefill", "context cache", "loading", "xDeepServe", "other systems"]


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published figure.

    Attributes:
        published: in `unit`; for gains a factor.
        predict: the same from a model.
        tolerance: relative error that the pinned test allows.
        kind: what agreement proves. Calibration uses the fitted rows of groups that have parameters.
        note: why it cannot be met better, if it cannot.
    """

    group: Group
    name: str
    published: float
    unit: str
    source: str
    predict: Callable[[CostModel], float]
    tolerance: float = 0.05
    kind: RowKind = RowKind.FITTED
    note: str = ""

    def error(self, model: CostModel) -> float:
        """Relative error of the model: predicted over published, less one."""
        return self.predict(model) / self.published - 1


# --- decode -------------------------------------------------------------------------------------------------------
PUBLISHED_HALVES_FROM = 16
"""Sequences per NPU from which CloudMatrix-Infer runs two half batches in decode, whether or not they are faster.

Not published: Table 5 is met at batch 8 without and at batch 24 only with them, though whole batches would be faster.
Counted as a parameter that was chosen by the rows.
"""


def published_halves(batch: float) -> bool:
    """Whether the published engine runs a batch [sequences per NPU] as two halves."""
    return batch >= PUBLISHED_HALVES_FROM


def _tpot(batch: float, context: float) -> Callable[[CostModel], float]:
    return lambda model: model.tpot_s(batch, context, microbatch=published_halves(batch)) * 1e3


def _layer(batch: float, drafts: int) -> Callable[[CostModel], float]:
    requests = batch / 2
    load = DecodeLoad(requests, requests * 4096, None, 320, drafts, True)
    return lambda model: model.decode.layers_s(load, microbatch=True)[0] * 1e6


def _streams(which: Literal[0, 1]) -> Callable[[CostModel], float]:
    """One stream of a half batch at the published split: 16 of 24 cores for attention."""

    def predict(model: CostModel) -> float:
        half = model.decode.half_batch(DecodeLoad(48, 48 * 4096, None, 320, 1, True), 2)
        if which == 0:
            return model.decode.attention_s(half, 16 / 24) * 1e6
        return model.decode.expert_s(half, 8 / 24) * 1e6

    return predict


def _microbatch_gain(batch: float) -> Callable[[CostModel], float]:
    return lambda model: model.tpot_s(batch, 4096, microbatch=False) / model.tpot_s(batch, 4096, microbatch=True)


def _mtp_gain(batch: float) -> Callable[[CostModel], float]:
    halves = published_halves(batch)
    return lambda model: (
        model.tpot_s(batch, 4096, drafts=0, microbatch=halves) / model.tpot_s(batch, 4096, drafts=1, microbatch=halves)
    )


_TABLE_5 = "V2 Table 5"
DECODE_ROWS = (
    PublishedRow("decode", "TPOT, batch 128, 1K + 1K", 46.8, "ms", _TABLE_5, _tpot(128, 1024 + 512)),
    PublishedRow("decode", "TPOT, batch 112, 2K + 256", 47.4, "ms", _TABLE_5, _tpot(112, 2048 + 128)),
    PublishedRow("decode", "TPOT, batch 96, 4K + 256", 49.4, "ms", _TABLE_5, _tpot(96, 4096 + 128)),
    PublishedRow("decode", "TPOT, batch 24, 4K + 256", 24.6, "ms", _TABLE_5, _tpot(24, 4096 + 128)),
    PublishedRow("decode", "TPOT, batch 8, 4K + 256", 14.9, "ms", _TABLE_5, _tpot(8, 4096 + 128)),
    PublishedRow("decode", "layer, batch 96, MTP on", 1260, "us", "V2 5.4.2, Fig 22b", _layer(96, 1)),
    PublishedRow("decode", "layer, batch 96, MTP off", 874, "us", "V2 5.4.2, Fig 22b", _layer(96, 0)),
    PublishedRow("decode", "attention stream, 16 cores", 600, "us", "V2 4.2.3, Fig 14b", _streams(0)),
    PublishedRow("decode", "expert stream, 8 cores", 600, "us", "V2 4.2.3, Fig 14b", _streams(1)),
    PublishedRow("decode", "microbatch gain, batch 64", 1.058, "x", "V2 5.4.1, Fig 20a", _microbatch_gain(64)),
    PublishedRow("decode", "microbatch gain, batch 96", 1.094, "x", "V2 5.4.1, Fig 20a", _microbatch_gain(96)),
    PublishedRow("decode", "microbatch gain, batch 128", 1.069, "x", "V2 5.4.1, Fig 20a", _microbatch_gain(128)),
    PublishedRow("decode", "MTP gain, batch 8", 1.49, "x", "V2 5.4.2, Fig 22a", _mtp_gain(8)),
    PublishedRow("decode", "MTP gain, batch 128", 1.06, "x", "V2 5.4.2, Fig 22a", _mtp_gain(128)),
)


# --- prefill ------------------------------------------------------------------------------------------------------
def prefill_load(
    prompt: float,
    *,
    per_npu: float = 16_384,
    npus: float = 16,
    reuse: float = 0.0,
    perfect: bool = True,
    microbatch: bool = True,
    dies: int = 32,
) -> PrefillLoad:
    """A step of equal prompts that fills every NPU's token budget.

    Args:
        per_npu: prompt tokens of each NPU, cached ones included.
        reuse: share of each prompt that is cached.
    """
    tokens = per_npu * npus * (1 - reuse)
    return PrefillLoad(tokens, tokens * prompt * (reuse + (1 - reuse) / 2), dies, 1.0 if perfect else None, microbatch)


def _prefill_rate(*, perfect: bool) -> Callable[[CostModel], float]:
    return lambda model: 16_384 / model.prefill_step_s(prefill_load(4096, perfect=perfect))


def _prefill_layer_cut(model: CostModel) -> float:
    load = prefill_load(4096)
    return model.prefill.layer_s(load, microbatch=True) / model.prefill.layer_s(load, microbatch=False)


def _prefill_gain(prompt: float) -> Callable[[CostModel], float]:
    return lambda model: (
        model.prefill_step_s(prefill_load(prompt, microbatch=False)) / model.prefill_step_s(prefill_load(prompt))
    )


PREFILL_ROWS = (
    PublishedRow("prefill", "tokens/s per NPU, perfect EPLB", 6688, "tok/s", "V2 Table 3", _prefill_rate(perfect=True)),
    PublishedRow(
        "prefill", "tokens/s per NPU, default EPLB", 5655, "tok/s", "V2 Table 3", _prefill_rate(perfect=False)
    ),
    PublishedRow("prefill", "layer, half batches / whole", 0.76, "x", "V2 5.4.1, Fig 21b", _prefill_layer_cut),
    PublishedRow("prefill", "microbatch gain, 1K prompts", 1.31, "x", "V2 5.4.1, Fig 21a", _prefill_gain(1024)),
    PublishedRow("prefill", "microbatch gain, 8K prompts", 1.23, "x", "V2 5.4.1, Fig 21a", _prefill_gain(8192)),
)


# --- context cache ------------------------------------------------------------------------------------------------
def ttft_s(model: CostModel, reuse: float) -> float:
    """Time to first token of a full step, cached blocks loaded before it."""
    step = model.prefill_step_s(prefill_load(4096, reuse=reuse))
    return step + model.pool_load_s(model.kv_bytes(16_384 * 16 * reuse), 16) if reuse else step


def _ttft(reuse: float) -> Callable[[CostModel], float]:
    return lambda model: ttft_s(model, reuse)


def _reuse_gain(low: float, high: float) -> Callable[[CostModel], float]:
    return lambda model: ttft_s(model, low) / ttft_s(model, high)


_DISAGREE = (
    "the published gains disagree with each other: at 90 % reuse TTFT shrinks 2.43 times, throughput grows 2.28 times, "
    "and a third of TTFT does not shrink with reuse for an unpublished reason; one load rate cannot meet them all"
)


def _cache(
    name: str, published: float, unit: str, predict: Callable[[CostModel], float], tolerance: float
) -> PublishedRow:
    return PublishedRow("context cache", name, published, unit, "V2 5.4.3, Fig 23", predict, tolerance, note=_DISAGREE)


CACHE_ROWS = (
    _cache("TTFT, no reuse", 2.54, "s", _ttft(0.0), 0.05),
    _cache("TTFT, 50 % reuse", 1.67, "s", _ttft(0.5), 0.05),
    _cache("TTFT, 90 % reuse", 1.046, "s", _ttft(0.9), 0.05),
    _cache("throughput, 50 % over 12.5 %", 1.42, "x", _reuse_gain(0.125, 0.5), 0.08),
    _cache("throughput, 90 % over none", 2.28, "x", _reuse_gain(0.0, 0.9), 0.05),
)
