"""Coefficients of sparse attention's indexer, mean over a model's layers: seconds on a whole die.

Its matrices are read and multiplied in BF16. Scores take matrix products, then ReLU, weights and the choice on vector
cores; for them all cached keys are read. Chosen rows are scattered, so core attention reads them one by one.
"""

from dataclasses import dataclass

from hardware.cost.attention import BF16_BYTES
from hardware.cost.device_model import DeviceModel
from hardware.cost.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class IndexerTerms:
    """`_t` = seconds per token, or per new and cached token; `_w` = seconds to read weights or a key once.

    Attributes:
        product_t / product_w: projections to queries, key and weights of heads.
        score_t / score_w / score_vector_t: scores and the choice.
        gathered_w: one chosen row of the cache, read on its own.
    """

    product_t: float
    product_w: float
    score_t: float
    score_w: float
    score_vector_t: float
    gathered_w: float


def indexer_terms(device: DeviceModel, shape: ModelShape, utilisation: float) -> IndexerTerms | None:
    """Coefficients of a model's indexer on one device; None of a model without one.

    Args:
        utilisation: of the BF16 peak, by scores: that of core attention, since no value is published for them.
    Source: DeepSeek-V3.2-Exp report, equation 1; peaks and efficiencies from the device file.
    """
    indexer = shape.indexer
    if indexer is None:
        return None
    die, cal, weights = device.die, device.calibration, shape.indexer_weights
    share = indexer.layers / shape.layers
    scattered = die.hbm_bytes_per_s * cal.gathered_memory_efficiency
    return IndexerTerms(
        product_t=share * 2 * weights / (die.bf16_flops_per_s * cal.gemm_utilisation),
        product_w=share * weights * BF16_BYTES / (die.hbm_bytes_per_s * cal.weight_memory_efficiency),
        score_t=share * indexer.score_flops / (die.bf16_flops_per_s * utilisation),
        score_w=share * indexer.dim * BF16_BYTES / (die.hbm_bytes_per_s * cal.core_memory_efficiency),
        score_vector_t=share * indexer.score_vector_flops / die.vector_flops_per_s,
        gathered_w=shape.attention.attended_values * BF16_BYTES / scattered,
    )
