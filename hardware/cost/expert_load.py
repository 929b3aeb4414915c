"""Load of the busiest die of an expert-parallel group: tokens that arrive, and experts whose weights it reads.

The slowest die determines the time of a step. Tokens fall on the copies of experts by chance, and copies stay unequally
popular after balancing; a die with many copies averages both out, and with many dies some one has bad luck. Experts
that no token visits are not read: with a handful of tokens most are not.
"""

import math
from statistics import NormalDist

from hardware.cost.device_model import Layout
from hardware.cost.model_shape import ModelShape

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
