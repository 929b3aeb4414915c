"""Exchanges within groups of dies that share attention or the LM head.

After attention each die of a group has a part of the sum for every token. A reduce-scatter gives each die the sums of
its share of the tokens; that is all that norms, gate and dispatch need, so that each token is sent to its experts
once. Before the next attention an all-gather gives every die all tokens again. Together they carry as much as one
all-reduce; two all-reduces a layer would carry twice that, and send each token from every die of the group. A dense
feed-forward is split as well, and has the same pair once more.
"""

from typing import NamedTuple

from hardware.cost.attention import BF16_BYTES
from hardware.cost.device_model import DeviceModel
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import Parallelism


class Collectives(NamedTuple):
    """Coefficients; all 0 without groups.

    Attributes:
        pair_s / pair_t: reduce-scatter and all-gather of hidden rows: with zero tokens, and per token of the group.
        head_s / head_t: all-gather of hidden rows before a split LM head and exchange of the parts' best tokens: with
        zero rows, and per row of one die.
    """

    pair_s: float = 0.0
    pair_t: float = 0.0
    head_s: float = 0.0
    head_t: float = 0.0


def collectives(device: DeviceModel, shape: ModelShape, parallelism: Parallelism) -> Collectives:
    """Coefficients of one model on one device.

    The fixed time of an exchange is assumed to equal that of a dispatch.
    """
    tp, head = parallelism.attention_tp, parallelism.head_tp
    row_s = shape.hidden * BF16_BYTES / device.calibration.collective_bytes_per_s
    floor = device.calibration.exchange_floor_s
    return Collectives(
        pair_s=2 * floor if tp > 1 else 0.0,
        pair_t=2 * (tp - 1) / tp * row_s,
        head_s=2 * floor if head > 1 else 0.0,
        head_t=(head - 1) * row_s,
    )
