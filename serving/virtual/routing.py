"""Rows per expert in virtual time, slice by slice: from a routing trace, or drawn by seed from a fit.

Fit of the skew: popularity is log-normal, `exp(1.7 z)`. Of 256 experts 21 % then get more than the mean, the hottest 30
times the mean; for DeepSeek-R1 on ShareGPT 20 % and 30 times are published (xDeepServe, arXiv 2508.02520, Figure 11).
The deviation of a slice from the long-term mean is not published.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from hardware.variation import StepVariation
from serving.errors import ConfigError
from serving.group.core.expert_load import LayerLoad
from serving.group.core.routing_trace import read_trace

SKEW = "skew"
"""Value of `[simulation] routing` for the fit."""
SKEW_SPREAD = 1.7
"""Standard deviation of the logarithm of an expert's popularity."""
SLICE_SPREAD = 0.1
"""Standard deviation of the logarithm of the factor that a slice multiplies the popularity with."""
DRAWN_LAYERS = 2
"""Number of drawn layers; each represents an equal part of the model's layers. With 288 ranks, planning takes a quarter
of a second of CPU time per layer."""

Rows = tuple[tuple[int, ...], ...]
"""[layer][expert]"""


class ExpertRouting(Protocol):
    """Load of experts, by number of the slice.

    Attributes:
        layers: number of layers with a load; each represents an equal number of the model's layers.
    """

    layers: int
    experts: int

    def weights(self, number: int) -> Sequence[Sequence[float]]:
        """[layer][expert] Load of a slice, in any unit."""
        ...

    def rows(self, number: int, total: int) -> Rows:
        """Rows that ranks count in a slice.

        Args:
            total: rows of a layer that the instance computed, counted once per chosen expert.
        """
        ...


class SkewedRouting:
    """Routing drawn from the fit.

    Args:
        name: of the instance: instances share the popular experts, but deviate from the mean independently.
        spread, skew: standard deviations, in place of `SLICE_SPREAD` and `SKEW_SPREAD`.
    """

    layers = DRAWN_LAYERS

    def __init__(
        self, experts: int, seed: int, name: str, spread: float = SLICE_SPREAD, skew: float = SKEW_SPREAD
    ) -> None:
        self.experts = experts
        self._slices = StepVariation(spread, 0.0, 1.0, seed, f"{name}/routing")
        deal = StepVariation(1.0, 0.0, 1.0, seed, "popularity")
        scores = [NormalDist().inv_cdf((place + 0.625) / (experts + 0.25)) for place in range(experts)]
        self._popularity: list[list[float]] = []
        for layer in range(self.layers):
            order = sorted(range(experts), key=lambda one: (deal.factor(layer * experts + one), one))
            ranked = dict(zip(order, scores, strict=True))
            self._popularity.append([math.exp(skew * ranked[expert]) for expert in range(experts)])

    def weights(self, number: int) -> Sequence[Sequence[float]]:
        """See `ExpertRouting`."""
        first = number * self.layers * self.experts
        return [
            [one * self._slices.factor(first + layer * self.experts + expert) for expert, one in enumerate(row)]
            for layer, row in enumerate(self._popularity)
        ]

    def rows(self, number: int, total: int) -> Rows:
        """See `ExpertRouting`."""
        return tuple(
            tuple(int(one / whole * total + 0.5) for one in row)
            for row in self.weights(number)
            for whole in [math.fsum(row)]
        )


class RecordedRouting:
    """The slices of a routing trace in order, repeated from the first after the last.

    Rows are as recorded, independent of the number that the instance computed, so that plans equal those of the live
    group.

    Args:
        loads: [layer][slice][expert].
    """

    def __init__(self, loads: Sequence[LayerLoad]) -> None:
        self._loads = loads
        self.layers, self.experts = len(loads), len(loads[0][0])

    def weights(self, number: int) -> Rows:
        """See `ExpertRouting`."""
        return tuple(layer[number % len(layer)] for layer in self._loads)

    def rows(self, number: int, total: int) -> Rows:
        """See `ExpertRouting`."""
        return self.weights(number) if total else ((0,) * self.experts,) * self.layers


def read_routing(path: Path, experts: int, layers: int, slice_s: float) -> RecordedRouting:
    """Read a file of `cloudmatrix experts record`.

    Args:
        experts, layers: of the model. slice_s: of `[experts]`.
    Raises: ConfigError if the file cannot be read, or its model or slices differ; RoutingTraceError.
    """
    try:
        with path.open("rb") as file:
            trace = read_trace(file)
    except OSError as error:
        raise ConfigError(f"[simulation] routing: cannot read {path}: {error.strerror or error}") from error
    head, where = trace.head, f"[simulation] routing = {path}"
    if head.experts != experts or not 1 <= head.layers <= layers:
        raise ConfigError(
            f"{where}: {head.layers} layers of {head.experts} experts, but the model has {layers} of {experts}"
        )
    if abs(head.slice_s - slice_s) > 1e-6:
        raise ConfigError(
            f"{where} has slices of {head.slice_s:g} s, but [experts] window_s / slices makes {slice_s:g} s: make them"
            " equal"
        )
    if not trace.slices:
        raise ConfigError(f"{where} has no rows")
    return RecordedRouting(trace.loads())
