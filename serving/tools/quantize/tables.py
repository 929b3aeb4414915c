"""Tables of a quantisation, for the terminal and for report.md."""

from collections.abc import Mapping

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of
from serving.tools.quantize.classes import INT8_CLASSES
from serving.tools.quantize.result import QuantizationReport, TrialResult, mean_error

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
