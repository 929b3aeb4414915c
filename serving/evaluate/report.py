"""Results of an evaluation: as tables for people, as JSON for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving.errors import ConfigError
from serving.evaluate.perplexity import TextResult
from serving.evaluate.statistics import Estimate
from serving.evaluate.tasks.accuracy import TaskAccuracy, TaskResult
from serving.terminal import table_console
from serving.version import VERSION


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One run.

    Args:
        settings: what must be known to repeat it.
        load_s, evaluate_s: reading the weights; everything after [s].
    """

    settings: dict[str, object]
    texts: tuple[TextResult, ...]
    tasks: tuple[TaskResult, ...]
    load_s: float
    evaluate_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite figure is null, which JSON has no number for."""
        texts, tasks = [text.as_json() for text in self.texts], [task.as_json() for task in self.tasks]
        times = {"load_s": self.load_s, "evaluate_s": self.evaluate_s}
        whole = {"version": VERSION, "settings": self.settings, "texts": texts, "tasks": tasks, **times}
        return {key: _finite(value) for key, value in whole.items()}


def write_report(report: EvaluationReport, path: Path) -> None:
    """Write a report as JSON.

    Raises: ConfigError if the file cannot be written.
    Effects: writes `path`.
    """
    try:
        path.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def print_report(report: EvaluationReport) -> None:
    """Print the tables.

    Effects: prints.
    """
    console = table_console()
    if report.texts:
        console.print(_perplexities(report.texts))
    if report.texts and report.texts[0].compared is not None:
        console.print(_distances(report.texts))
    if report.tasks:
        console.print(_accuracies(report.tasks))
        _notes(console, report.tasks)
    console.print(f"Weights read in {report.load_s:.1f} s, evaluated in {report.evaluate_s:.1f} s.", style="dim")


def _perplexities(texts: Sequence[TextResult]) -> Table:
    columns = ["text", "documents", "tokens", "per token [95 %]", "per word", "bits per byte"]
    table = _table("Perplexity", *columns, *(["the reference's"] if texts[0].compared is not None else []))
    for text in texts:
        row = [escape(text.name), f"{text.documents:,}", f"{text.tokens:,}", _interval(text.perplexity, ",.3f")]
        row += ["–" if text.per_word is None else f"{text.per_word:,.2f}", f"{text.bits_per_byte:.4f}"]
        if text.compared is not None:
            row.append(f"{text.compared.perplexity.value:,.3f}")
        table.add_row(*row)
    return table


def _distances(texts: Sequence[TextResult]) -> Table:
    columns = ("text", "perplexity ratio [95 %]", "KL mean, nat [95 %]", "median", "p99", "max", "same top-1 [95 %]")
    table = _table("Against the reference", *columns)
    for text in texts:
        if (compared := text.compared) is not None:
            spread = (compared.divergence_median, compared.divergence_p99, compared.divergence_max)
            table.add_row(
                escape(text.name),
                _interval(compared.ratio, ".4f", between="\n"),
                _interval(compared.divergence, ".2e", between="\n"),
                *(f"{value:.1e}" for value in spread),
                _interval(compared.agreement, ".2%", between="\n"),
            )
    return table


def _accuracies(tasks: Sequence[TaskResult]) -> Table:
    columns = ("task", "questions", "shots", "acc ± stderr", "acc_norm ± stderr")
    table = _table("Tasks", *columns, *(["same choice"] if tasks[0].reference is not None else []))
    for task in tasks:
        counts = (f"{task.questions:,}", str(task.num_fewshot))
        table.add_row(escape(task.name), *counts, *_shares(task.model))
        if task.reference is not None and task.same_choice is not None:
            table.add_row("  by the reference", "", "", *_shares(task.reference), f"{task.same_choice:.2%}")
    return table


def _notes(console: Console, tasks: Sequence[TaskResult]) -> None:
    for task in tasks:
        if task.cut:
            console.print(
                f"{escape(task.name)}: {task.cut:,} contexts were too long and lost their beginning", style="yellow"
            )
        if task.unanswerable:
            told = f"the answer of {task.unanswerable:,} questions is none of their choices, and counts as wrong"
            console.print(f"{escape(task.name)}: {told}", style="yellow")
        if task.left_out:
            console.print(f"{escape(task.name)}: not computed: {escape(', '.join(task.left_out))}", style="yellow")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left", no_wrap=bool(index))
    return table


def _interval(estimate: Estimate, form: str, *, between: str = " ") -> str:
    value = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value}{between}[{estimate.low:{form}}, {estimate.high:{form}}]"


def _shares(accuracy: TaskAccuracy) -> tuple[str, str]:
    return _share(accuracy.acc, accuracy.acc_stderr), _share(accuracy.acc_norm, accuracy.acc_norm_stderr)


def _share(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def _finite(value: Any) -> Any:  # noqa: ANN401
    """The same value with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
