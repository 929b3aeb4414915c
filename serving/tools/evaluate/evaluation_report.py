"""Results of an evaluation: as tables for people, as JSON for programs."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of, terminal_table
from serving.terminal import table_console, write_file
from serving.tools.evaluate.intervals import Estimate
from serving.tools.evaluate.perplexity import TextResult
from serving.tools.evaluate.tasks.questions import TaskAccuracy, TaskResult
from serving.version import VERSION


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One run.

    Args:
        settings: what must be known to repeat it.
        load_s, evaluate_s: reading the weights; the rest of the run [s].
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
    write_file(path, (json.dumps(report.as_json(), indent=2) + "\n").encode())


def print_report(report: EvaluationReport) -> None:
    """Print the tables.

    Effects: prints.
    """
    console = table_console()
    if report.texts:
        _print(console, "Perplexity", _perplexities(report.texts))
    if report.texts and report.texts[0].compared is not None:
        _print(console, "Against the reference", _distances(report.texts))
    if report.tasks:
        _print(console, "Tasks", _accuracies(report.tasks))
        _notes(console, report.tasks)
    read, evaluated = numbers.duration(report.load_s), numbers.duration(report.evaluate_s)
    console.print(f"Weights read in {read}, evaluated in {evaluated}.", style="dim", highlight=False)


def _print(console: Console, title: str, table: Table) -> None:
    console.print(title, style="bold")
    console.print(terminal_table(table, console.width))
    console.print()


def _perplexities(texts: Sequence[TextResult]) -> Table:
    names = ["text", "documents", "tokens", "per token [95 %]", "per word", "bits per byte"]
    rows = []
    for text in texts:
        row = [text.name, numbers.count(text.documents), numbers.count(text.tokens)]
        row += [_interval(text.perplexity, _perplexity), numbers.fixed(text.per_word, 2)]
        row.append(numbers.fixed(text.bits_per_byte, 4))
        if text.compared is not None:
            row.append(_perplexity(text.compared.perplexity.value))
        rows.append(row)
    return table_of(columns(*names, *(["the reference's"] if texts[0].compared is not None else [])), rows)


def _distances(texts: Sequence[TextResult]) -> Table:
    heads = columns(
        "text", "perplexity ratio [95 %]", "KL mean, nat [95 %]", "median", "p99", "max", "same top-1 [95 %]"
    )
    rows = []
    for text in texts:
        if (compared := text.compared) is not None:
            spread = (compared.divergence_median, compared.divergence_p99, compared.divergence_max)
            rows.append([
                text.name, _interval(compared.ratio, lambda value: numbers.fixed(value, 4), between="\n"),
                _interval(compared.divergence, numbers.scientific, between="\n"),
                *(numbers.scientific(value, 1) for value in spread),
                _interval(compared.agreement, lambda value: numbers.share(value, 2), between="\n"),
            ])  # fmt: skip
    return table_of(heads, rows)


def _accuracies(tasks: Sequence[TaskResult]) -> Table:
    referred = tasks[0].reference is not None
    names = ["task", "questions", "shots", "acc ± stderr", "acc_norm ± stderr", *(["same choice"] if referred else [])]
    rows: list[list[str]] = []
    for task in tasks:
        row = [task.name, numbers.count(task.questions), str(task.num_fewshot), *_shares(task.model)]
        rows.append([*row, *([""] if referred else [])])
        if task.reference is not None and task.same_choice is not None:
            same = numbers.share(task.same_choice, 2)
            rows.append(["  by the reference", "", "", *_shares(task.reference), same])
    return table_of(columns(*names), rows)


def _notes(console: Console, tasks: Sequence[TaskResult]) -> None:
    for task in tasks:
        if task.cut:
            console.print(
                f"{escape(task.name)}: {task.cut:,} contexts were too long and were cut at the start", style="yellow"
            )
        if task.unanswerable:
            reason = f"the answer of {task.unanswerable:,} questions is none of their choices, and counts as wrong"
            console.print(f"{escape(task.name)}: {reason}", style="yellow")
        if task.left_out:
            console.print(f"{escape(task.name)}: not computed: {escape(', '.join(task.left_out))}", style="yellow")


def _interval(estimate: Estimate, text: Callable[[float], str], *, between: str = " ") -> str:
    value = text(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value}{between}[{text(estimate.low)}, {text(estimate.high)}]"


def _perplexity(value: float) -> str:
    return numbers.fixed(value, 3)


def _shares(accuracy: TaskAccuracy) -> tuple[str, str]:
    return _share(accuracy.acc, accuracy.acc_stderr), _share(accuracy.acc_norm, accuracy.acc_norm_stderr)


def _share(value: float, error: float | None) -> str:
    shown = numbers.fixed(value, 4)
    return shown if error is None else f"{shown} ± {numbers.fixed(error, 4)}"


def _finite(value: Any) -> Any:  # noqa: ANN401
    """The same value with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
