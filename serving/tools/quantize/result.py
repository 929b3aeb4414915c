"""Result of one quantisation, as values."""

from collections.abc import Iterable
from dataclasses import dataclass

from serving.tools.quantize.accuracy import ModelAccuracy
from serving.tools.quantize.classes import INT8_CLASSES
from serving.tools.quantize.layer import ProductError


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One variation of the recipe.

    Args:
        errors: relative error (root mean square) of the products of each operator class, on held-out rows: the mean
            over products.
    """

    accuracy: ModelAccuracy
    errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """One run.

    Args:
        steps: that the written model has.
        text: where the calibration tokens come from.
        expert_rows: per layer with experts, the rows that each expert saw in calibration.
        bytes_before, bytes_after: of the weights, as stored.
        perplexity: of the original on the held-out text.
        trials: by name; `chosen` is what was written.
    """

    model: str
    steps: tuple[str, ...]
    kept: tuple[str, ...]
    text: str
    random_text: bool
    calibration_tokens: int
    held_out_tokens: int
    window_tokens: int
    seed: int
    bytes_before: int
    bytes_after: int
    elapsed_s: float
    perplexity: float
    trials: dict[str, TrialResult]
    expert_rows: dict[int, dict[int, int]]


def class_errors(errors: Iterable[ProductError]) -> dict[str, float]:
    """Each operator class's relative error, the mean over its products."""
    found: dict[str, list[float]] = {}
    for error in errors:
        if error.signal > 0:
            found.setdefault(error.product.operator, []).append((error.lost / error.signal) ** 0.5)
    return {o.name: sum(found[o.name]) / len(found[o.name]) for o in INT8_CLASSES if o.name in found}


def mean_error(trial: TrialResult) -> float:
    """Mean of the operator classes' errors."""
    return sum(trial.errors.values()) / max(1, len(trial.errors))
