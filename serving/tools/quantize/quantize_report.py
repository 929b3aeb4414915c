"""Report of a quantisation and of how good it is, as JSON and as a page of Markdown."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from loadgen.report import numbers
from loadgen.report.table import Table, columns, markdown_table, table_of
from serving.tools.quantize.layer import ProductError
from serving.tools.quantize.quantize_settings import STEP_HELP
from serving.tools.quantize.structure import INT8_CLASSES
from serving.tools.quantize.trial import ModelAccuracy

# Result of one quantisation, as values.


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


# Report of a quantisation and of how good it is, as JSON and as a page of Markdown.

RANDOM_NOTE = "No text was given: calibrated on random tokens. Give text of the model's own kind for a real model."


def as_json(report: QuantizationReport) -> str:
    """The complete report as JSON."""
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
        _markdown(accuracy_table(report)),
        "## Error of each operator class",
        "Relative error of the products' outputs (root mean square), held-out text.",
        _markdown(class_table(report.trials)),
        "## Steps",
        "\n".join(f"- `{name}`: {text}" for name, text in STEP_HELP.items()),
        *_experts(report.expert_rows),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(report: QuantizationReport) -> str:
    before, after = numbers.size(report.bytes_before), numbers.size(report.bytes_after)
    part = numbers.share(report.bytes_after / report.bytes_before)
    lines = [
        f"- steps: {', '.join(report.steps) or 'none (plain rounding)'}",
        f"- kept as they were on request: {', '.join(report.kept) or 'nothing'}",
        f"- text: {report.text}; {report.calibration_tokens:,} tokens to calibrate and {report.held_out_tokens:,} held "
        f"out, in windows of {report.window_tokens}, seed {report.seed}",
        f"- weights: {before} before, {after} after ({part})",
        f"- time: {numbers.duration(report.elapsed_s)}, all trials together",
    ]
    return "\n".join(lines + ([f"- {RANDOM_NOTE}"] if report.random_text else []))


def _experts(rows: Mapping[int, Mapping[int, int]]) -> list[str]:
    if not rows:
        return []
    text = (
        "Calibration rows that each layer's experts saw. An expert that saw fewer than its matrices have input "
        "channels was given rows of the layer's other tokens as well."
    )
    return ["## Tokens of each expert", text, _markdown(expert_table(rows))]


def _markdown(table: Table) -> str:
    return "\n".join(markdown_table(table))


# Tables of a quantisation, for the terminal and for report.md.

_AGREEMENT_DIGITS, _ERROR_DIGITS = 2, 3


def accuracy_table(report: QuantizationReport) -> Table:
    """A table of the gain of each step."""
    heads = columns("", "perplexity", "÷ original", "KL [nat]", "KL median", "top-1", "draft top-1", "error")
    original = ("original", numbers.fixed(report.perplexity, 4), "1", "0", "0", numbers.share(1.0), "", "0")
    return table_of(heads, [original, *(_trial_row(name, trial, report) for name, trial in report.trials.items())])


def class_table(trials: Mapping[str, TrialResult]) -> Table:
    """Error of each operator class in each trial."""
    names = [one.name for one in INT8_CLASSES if any(one.name in trial.errors for trial in trials.values())]
    rows = [(name, *(_error(trial.errors.get(name)) for trial in trials.values())) for name in names]
    return table_of(columns("", *trials), rows)


def expert_table(rows: Mapping[int, Mapping[int, int]]) -> Table:
    """Rows that the experts of each layer saw in calibration."""
    counts = [(layer, list(seen.values())) for layer, seen in rows.items()]
    return table_of(
        columns("layer", "least", "mean", "most"),
        [
            (layer, *(numbers.count(value) for value in (min(seen), sum(seen) // len(seen), max(seen))))
            for layer, seen in counts
        ],
    )


def _trial_row(name: str, trial: TrialResult, report: QuantizationReport) -> tuple[str, ...]:
    found = trial.accuracy
    draft = "" if found.draft_agreement is None else numbers.share(found.draft_agreement, _AGREEMENT_DIGITS)
    return (
        name, numbers.fixed(found.perplexity, 4), numbers.fixed(found.perplexity / report.perplexity, 5),
        numbers.scientific(found.divergence), numbers.scientific(found.median_divergence),
        numbers.share(found.agreement, _AGREEMENT_DIGITS), draft, _error(mean_error(trial)),
    )  # fmt: skip


def _error(value: float | None) -> str:
    return "" if value is None else numbers.share(value, _ERROR_DIGITS)
