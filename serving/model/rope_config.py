"""The rotary-position settings of a checkpoint, and the numbers that follow from them. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from serving.errors import ModelError
from serving.model.config_values import number, whole


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions, plain (`yarn` is None) or stretched by YaRN.

    Args:
        theta: base of the wavelengths.
        interleave: whether the checkpoint pairs neighbouring elements (DeepSeek) or halves of the head.
    """

    theta: float
    interleave: bool
    yarn: "YarnConfig | None"

    @property
    def score_factor(self) -> float:
        """YaRN's factor on attention scores; 1 without it."""
        if self.yarn is None or not self.yarn.mscale_all_dim:
            return 1.0
        return yarn_mscale(self.yarn.factor, self.yarn.mscale_all_dim) ** 2

    @property
    def amplitude(self) -> float:
        """YaRN's factor on cosines and sines; 1 without it."""
        return 1.0 if self.yarn is None else self.yarn.amplitude

    def inverse_frequencies(self, width: int) -> tuple[float, ...]:
        """Angle per position [rad] of each of the `width / 2` rotated pairs.

        Source: YaRN (arXiv 2309.00071), equations 17-20, with the linear ramp in units of pairs.
        """
        plain = [self.theta ** (-2 * i / width) for i in range(width // 2)]
        if self.yarn is None:
            return tuple(plain)
        low, high = self.yarn.ramp(self.theta, width)
        stretched = []
        for i, frequency in enumerate(plain):
            interpolate = min(1.0, max(0.0, (i - low) / (high - low)))
            stretched.append(frequency / self.yarn.factor * interpolate + frequency * (1 - interpolate))
        return tuple(stretched)


@dataclass(frozen=True, slots=True)
class YarnConfig:
    """YaRN context extension: names as in `rope_scaling`."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        """Factor on cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)

    def ramp(self, theta: float, width: int) -> tuple[float, float]:
        """First and last pair of the ramp from untouched to fully interpolated frequencies."""

        def pair_of(rotations: float) -> float:
            turns = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return width * math.log(turns) / (2 * math.log(theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        return low, high if high != low else high + 0.001


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's temperature correction for a context stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def read_rope(raw: Mapping[str, object], max_positions: int, *, interleave: bool) -> RopeConfig:
    """Rotary settings from `config.json`: `rope_parameters` (newer) or `rope_theta` with `rope_scaling`.

    Raises: ModelError for kinds other than default and yarn, and for numbers out of range.
    """
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise TypeError("rope_scaling")
    theta = number(scaling, "rope_theta", number(raw, "rope_theta", 10000.0, least=1, above=True), least=1, above=True)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta, interleave, None)
    if kind != "yarn":
        raise ModelError(f"rope type {kind!r} is not supported; only 'default' and 'yarn' are")
    original = whole(scaling, "original_max_position_embeddings", max_positions)
    names = ("mscale", "mscale_all_dim", "attention_factor")
    optional = {name: number(scaling, name) for name in names if scaling.get(name) is not None}
    yarn = YarnConfig(
        factor=number(scaling, "factor", max_positions / original, least=0, above=True),
        original_max_position_embeddings=original,
        beta_fast=number(scaling, "beta_fast", 32.0, least=0, above=True),
        beta_slow=number(scaling, "beta_slow", 1.0, least=0, above=True),
        truncate=bool(scaling.get("truncate", True)),
        **optional,
    )
    return RopeConfig(theta, interleave, yarn)
