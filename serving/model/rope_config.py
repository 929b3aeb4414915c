"""The rotary-position settings of a checkpoint and the derived numbers. Imports no torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serving.errors import ModelError
from serving.model.config_keys import number, whole


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions.

    Args:
        theta: base of the wavelengths.
        interleave: whether the checkpoint pairs adjacent elements (DeepSeek) or halves of the head.
        scaling: how wavelengths are stretched for longer contexts; None = unchanged.
    """

    theta: float
    interleave: bool
    scaling: "YarnConfig | Llama3Scaling | LinearScaling | None" = None

    @property
    def score_factor(self) -> float:
        """YaRN's factor on attention scores; 1 without it."""
        if not isinstance(self.scaling, YarnConfig) or not self.scaling.mscale_all_dim:
            return 1.0
        return yarn_mscale(self.scaling.factor, self.scaling.mscale_all_dim) ** 2

    @property
    def amplitude(self) -> float:
        """YaRN's factor on cosines and sines; 1 without it."""
        return self.scaling.amplitude if isinstance(self.scaling, YarnConfig) else 1.0

    def inverse_frequencies(self, width: int) -> tuple[float, ...]:
        """Angle per position [rad] of each of the `width / 2` rotated pairs."""
        plain = tuple(self.theta ** (-2 * i / width) for i in range(width // 2))
        return plain if self.scaling is None else self.scaling.stretched(plain, self.theta, width)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Stretches all wavelengths by one factor."""

    factor: float

    def stretched(self, plain: tuple[float, ...], _theta: float, _width: int) -> tuple[float, ...]:
        """The scaled angles, from the unscaled ones."""
        return tuple(frequency / self.factor for frequency in plain)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: stretches long wavelengths, keeps short ones, interpolates between; names as in the file."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def stretched(self, plain: tuple[float, ...], _theta: float, _width: int) -> tuple[float, ...]:
        """The scaled angles, from the unscaled ones. Source: Llama 3.1's reference code (`apply_scaling`)."""
        return tuple(self._one(frequency) for frequency in plain)

    def _one(self, frequency: float) -> float:
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = min(1.0, max(0.0, kept))
        return frequency / self.factor * (1 - kept) + frequency * kept


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

    def stretched(self, plain: tuple[float, ...], theta: float, width: int) -> tuple[float, ...]:
        """The scaled angles, from the unscaled ones.

        Source: YaRN (arXiv 2309.00071), equations 17-20, with the linear ramp in units of pairs.
        """
        low, high = self.ramp(theta, width)
        angles = []
        for i, frequency in enumerate(plain):
            interpolate = min(1.0, max(0.0, (i - low) / (high - low)))
            angles.append(frequency / self.factor * interpolate + frequency * (1 - interpolate))
        return tuple(angles)

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


def read_rope(raw: Mapping[str, object], max_positions: int, *, interleave: bool, theta: float = 10000.0) -> RopeConfig:
    """Rotary settings from `config.json`: `rope_parameters` (newer) or `rope_theta` with `rope_scaling`.

    Args:
        theta: default base.
    Raises: ModelError for unknown kinds or keys, and numbers out of range.
    """
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise TypeError("rope_scaling")
    given = number(raw, "rope_theta", theta, least=1, above=True)
    base = number(scaling, "rope_theta", given, least=1, above=True)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in _KINDS:
        raise ModelError(f"rope type {kind[:40]!r} is not supported; only {', '.join(map(repr, _KINDS))} are")
    keys, read = _KINDS[kind]
    unknown = sorted(scaling.keys() - keys - _OF_ALL_KINDS)
    if unknown:
        raise ModelError(f"rope_parameters of type {kind!r} have the key {unknown[0][:60]}, which is not supported")
    return RopeConfig(base, interleave, read(scaling, max_positions))


def _yarn(scaling: Mapping[str, object], max_positions: int) -> YarnConfig:
    original = whole(scaling, "original_max_position_embeddings", max_positions)
    names = ("mscale", "mscale_all_dim", "attention_factor")
    optional = {name: number(scaling, name) for name in names if scaling.get(name) is not None}
    return YarnConfig(
        factor=number(scaling, "factor", max_positions / original, least=0, above=True),
        original_max_position_embeddings=original,
        beta_fast=number(scaling, "beta_fast", 32.0, least=0, above=True),
        beta_slow=number(scaling, "beta_slow", 1.0, least=0, above=True),
        truncate=bool(scaling.get("truncate", True)),
        **optional,
    )


def _llama3(scaling: Mapping[str, object], _max_positions: int) -> Llama3Scaling:
    low = number(scaling, "low_freq_factor", least=0, above=True)
    return Llama3Scaling(
        factor=number(scaling, "factor", least=0, above=True),
        low_freq_factor=low,
        high_freq_factor=number(scaling, "high_freq_factor", least=low, above=True),
        original_max_position_embeddings=whole(scaling, "original_max_position_embeddings"),
    )


def _linear(scaling: Mapping[str, object], _max_positions: int) -> LinearScaling:
    return LinearScaling(number(scaling, "factor", least=0, above=True))


_Scaling = YarnConfig | Llama3Scaling | LinearScaling | None

_OF_ALL_KINDS = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"} | {
    "partial_rotary_factor",  # read by the family's module
    "llama_4_scaling_beta",
    "max_position_embeddings",  # repeated there by some exporters
}
_YARN_KEYS = frozenset(("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"))

_KINDS: Mapping[str, tuple[frozenset[str], Callable[[Mapping[str, object], int], _Scaling]]] = {
    "default": (frozenset(), lambda _scaling, _max_positions: None),
    "yarn": (_YARN_KEYS, _yarn),
    "llama3": (frozenset(("low_freq_factor", "high_freq_factor")), _llama3),
    "linear": (frozenset(), _linear),
}
"""Kinds of scaling: the keys and the reader of each."""
