"""Dispatch and combine: duration of one exchange of tokens between the dies of an expert-parallel group.

Measured degrees are met exactly. Between and outside of them: a straight line over log2(degree) that saturates, plus
the deviation of the measured neighbours from it. The line alone is what leave-one-out tests.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hardware.cost.attention import BF16_BYTES
from hardware.cost.device_model import DeviceModel, ExpertTable, Layout
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import Parallelism
from hardware.units import Seconds


@dataclass(frozen=True, slots=True)
class SaturatingLine:
    """latency = at_first + slope * log2(min(degree, saturates) / first), and what measurements deviate from it."""

    at_first_s: float
    slope_s: float
    first: float
    saturates: float
    degrees: tuple[int, ...]
    deviations_s: tuple[float, ...]

    def trend_s(self, degree: float) -> float:
        """The line alone."""
        return self.at_first_s + self.slope_s * math.log2(min(degree, self.saturates) / self.first)

    def seconds(self, degree: float) -> Seconds:
        """The line and its deviation, which is interpolated over log2(degree) and constant outside the table."""
        at = bisect.bisect_left(self.degrees, degree)
        if at == 0 or at == len(self.degrees):
            deviation = self.deviations_s[min(at, len(self.degrees) - 1)]
        else:
            low, high = self.degrees[at - 1], self.degrees[at]
            share = math.log2(degree / low) / math.log2(high / low)
            deviation = self.deviations_s[at - 1] * (1 - share) + self.deviations_s[at] * share
        return Seconds(max(0.0, self.trend_s(degree) + deviation))


def fit_line(degrees: Sequence[int], latencies_s: Sequence[float], saturates: float) -> SaturatingLine:
    """Least squares over log2(min(degree, saturates)).

    Args:
        degrees: rising, at least one; with a single one the line is flat.
        saturates: degree from which latency no longer rises.
    """
    first = degrees[0]
    x = np.log2(np.minimum(np.asarray(degrees, dtype=float), saturates) / first)
    y = np.asarray(latencies_s, dtype=float)
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
    at_first = float(y.mean() - slope * x.mean())
    deviations = tuple(float(value) for value in y - (at_first + slope * x))
    return SaturatingLine(at_first, slope, first, saturates, tuple(degrees), deviations)


def dispatch_line(table: ExpertTable) -> SaturatingLine:
    """Latency of dispatch over the degree, at the table's tokens per rank."""
    return fit_line(table.degrees, table.dispatch_s, table.dispatch_saturates)


def combine_line(table: ExpertTable) -> SaturatingLine:
    """Latency of combine over the degree, at the table's tokens per rank."""
    return fit_line(table.degrees, table.combine_s, table.combine_saturates)


HOP_WORDS = 2
"""Words that a transfer between two dies waits for one after the other: the data's announcement, the acknowledgement.

Source: xDeepServe 3.1, steps 3 and 7.
"""


def hop_s(device: DeviceModel, nbytes: float, words: int = HOP_WORDS, bytes_per_s: float | None = None) -> float:
    """Duration of one transfer between two dies.

    Args:
        words: written and seen one after the other.
        bytes_per_s: rate of the copies; None = that of bulk exchanges.
    """
    rate = device.calibration.bulk_exchange_bytes_per_s if bytes_per_s is None else bytes_per_s
    return words * device.links.peer_write_latency_s + nbytes / rate


# Exchanges within groups of dies that share attention or the LM head.
#
# After attention each die of a group has a part of the sum for every token. A reduce-scatter gives each die the sums of
# its share of the tokens; that is all that norms, gate and dispatch need, so that each token is sent to its experts
# once. Before the next attention an all-gather gives every die all tokens again. Together they carry as much as one
# all-reduce; two all-reduces a layer would carry twice that, and send each token from every die of the group. A dense
# feed-forward is split as well, and has the same pair once more.


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


# Load of the busiest die of an expert-parallel group: tokens that arrive, and experts whose weights it reads.
#
# The slowest die determines the time of a step. Tokens fall on the copies of experts by chance, and copies stay
# unequally popular after balancing; a die with many copies averages both out, and with many dies some one has bad luck.
# Experts that no token visits are not read: with a handful of tokens most are not.

REDUNDANT_FROM = 32
"""Dies of the smallest published instance with redundant copies of experts; smaller ones keep the memory for KV.

Source: CloudMatrix384 paper 4.1: prefill on 32 dies.
"""
NEVER = 1e-12
"""Chance from which on every copy counts as visited."""


def expert_copies(layout: Layout, shape: ModelShape, dies: int, redundant: int | None = None) -> float:
    """Copies of routed experts that an instance of some dies holds.

    Args:
        redundant: beyond one of each; None = the device file's value.
    """
    if redundant is not None:
        return float(shape.experts + redundant)
    return shape.experts * (1 + layout.redundant_share) if dies >= REDUNDANT_FROM else float(shape.experts)


def has_shared_dies(layout: Layout, shape: ModelShape, dies: int) -> bool:
    """Whether a decode group keeps shared experts on dies of their own: where there is a die for each routed expert.

    Source: CloudMatrix384 paper 4.1 and xDeepServe 7.1: 320 and 288 dies for 256 experts; a prefill die of 32 has the
        shared expert in addition to its nine.
    """
    return layout.shared_die_share > 0 and shape.shared_experts > 0 and dies >= shape.experts


def largest_draw(dies: float) -> float:
    """Expected largest of so many draws from a standard normal distribution; 0 for a single one.

    Source: Blom (1958), the usual approximation of normal order statistics.
    """
    return NormalDist().inv_cdf((dies - 0.375) / (dies + 0.25)) if dies > 1 else 0.0


def busiest_tokens(mean: float, draw: float, variance: float) -> float:
    """Visits of routed tokens on the busiest die.

    Args:
        mean: visits of one die, mean over the dies.
        draw: see `largest_draw`.
        variance: of a die's popularity relative to the mean; counting adds what chance does.
    """
    return mean + draw * math.sqrt(mean + variance * mean * mean)


def experts_read(slots: int, dies: float, missed: float) -> float:
    """Experts that the die that reads most of them reads: expected largest of `dies` binomial draws.

    Args:
        slots: copies of routed experts on a die.
        missed: chance that no token visits a copy.
    """
    if missed < NEVER or not slots:
        return float(slots)
    if missed >= 1:
        return 0.0
    at_most, chance = 0.0, missed**slots
    expected = 0.0
    for visited in range(slots):
        at_most += chance
        expected += 1 - min(at_most, 1.0) ** dies
        chance *= (slots - visited) / (visited + 1) * (1 - missed) / missed
    return expected
