"""What a quantisation did and how good it is, as JSON and as a page of Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from serving.quantize.accuracy import ModelAccuracy
from serving.quantize.classes import INT8_CLASSES
from serving.quantize.layer import ProductError
from serving.quantize.settings import STEP_HELP

RANDOM_NOTE = "No text was given: calibrated on random tokens. Give text of the model's own kind for a real model."


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


def as_json(report: QuantizationReport) -> str:
    """Everything, for programs."""
    return json.dumps(asdict(report), indent=2) + "\n"


def as_markdown(report: QuantizationReport) -> str:
    """The page."""
    parts = [
        f"# INT8 quantisation of {report.model}",
        _facts(report),
        "## Accuracy on held-out text",
        "Each row is a whole run of its own. Perplexity is divided by the original's; KL is the divergence from "
        "the original's next-token distribution, its mean and, not ruled by the few tokens that were routed to other "
        "experts, its median; top-1 is how often both find the same token most likely; error is "
        "the mean relative error of the INT8 products' outputs, on inputs from the quantised layers before them.",
        accuracy_table(report),
        "## Error of each operator class",
        "Relative error of the products' outputs (root mean square), held-out text.",
        _class_table(report.trials),
        "## Steps",
        "\n".join(f"- `{name}`: {text}" for name, text in STEP_HELP.items()),
        *_experts(report.expert_rows),
    ]
    return "\n\n".join(parts) + "\n"


def accuracy_table(report: QuantizationReport) -> str:
    """What each step is worth, as a Markdown table."""
    rows = [
        (
            name,
            f"{trial.accuracy.perplexity:.4f}",
            f"{trial.accuracy.perplexity / report.perplexity:.5f}",
            f"{trial.accuracy.divergence:.2e}",
            f"{trial.accuracy.median_divergence:.2e}",
            f"{trial.accuracy.agreement:.2%}",
            "" if trial.accuracy.draft_agreement is None else f"{trial.accuracy.draft_agreement:.2%}",
            f"{mean_error(trial):.3%}",
        )
        for name, trial in report.trials.items()
    ]
    original = ("original", f"{report.perplexity:.4f}", "1", "0", "0", "100%", "", "0")
    head = ("", "perplexity", "÷ original", "KL [nat]", "KL median", "top-1", "draft top-1", "error")
    return _table(head, [original, *rows])


def mean_error(trial: TrialResult) -> float:
    """Mean of the operator classes' errors."""
    return sum(trial.errors.values()) / max(1, len(trial.errors))


def _facts(report: QuantizationReport) -> str:
    before, after = report.bytes_before / 1e6, report.bytes_after / 1e6
    lines = [
        f"- steps: {', '.join(report.steps) or 'none (plain rounding)'}",
        f"- kept as they were on request: {', '.join(report.kept) or 'nothing'}",
        f"- text: {report.text}; {report.calibration_tokens:,} tokens to calibrate and {report.held_out_tokens:,} held "
        f"out, in windows of {report.window_tokens}, seed {report.seed}",
        f"- weights: {before:,.1f} MB before, {after:,.1f} MB after ({after / before:.0%})",
        f"- time: {report.elapsed_s:,.0f} s, all trials together",
    ]
    return "\n".join(lines + ([f"- {RANDOM_NOTE}"] if report.random_text else []))


def _class_table(trials: Mapping[str, TrialResult]) -> str:
    names = [o.name for o in INT8_CLASSES if any(o.name in trial.errors for trial in trials.values())]
    rows = [(name, *(_percent(trial.errors.get(name)) for trial in trials.values())) for name in names]
    return _table(("", *trials), rows)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.3%}"


def _experts(rows: Mapping[int, Mapping[int, int]]) -> list[str]:
    if not rows:
        return []
    table = [
        (str(layer), str(min(seen.values())), str(sum(seen.values()) // len(seen)), str(max(seen.values())))
        for layer, seen in rows.items()
    ]
    text = (
        "Calibration rows that each layer's experts saw. An expert that saw fewer than its matrices have input "
        "channels was given rows of the layer's other tokens as well."
    )
    return ["## Tokens of each expert", text, _table(("layer", "least", "mean", "most"), table)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
