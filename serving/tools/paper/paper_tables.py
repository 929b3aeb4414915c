"""Tables of a reproduction, for page, terminal and Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.text import Text

from hardware.cost.published import RowKind
from loadgen.progress_bar import ProgressBar
from loadgen.report import numbers
from loadgen.report.fragments import Html, html
from loadgen.report.table import Cell, Table, TableRow, columns, markdown_table, select, table_of, terminal_table
from serving.tools.paper.experiment import CLOSE, Experiment, Row
from serving.tools.paper.reproduction import UNEXPLAINED, Reproduced, Reproduction


def rows_table(part: Reproduced) -> Table:
    """Every figure of an experiment: published, ours, and how far off."""
    heads = columns(
        "", "unit", "published", "ours", "error", "how", "source", text=("unit", "how", "source"), long=("",)
    )
    rows = []
    for row in part.findings.rows:
        far = row.error is not None and not row.within(CLOSE)
        cells = [
            row.label, row.unit, published_text(row), ours_text(row),
            Cell(error_text(row), "warn" if far else ""), row.how_text, row.source,
        ]  # fmt: skip
        rows.append(TableRow(cells, "soft" if row.ours is None else ""))
    return Table(heads, rows)


def overview_table(done: Reproduction) -> Table:
    """Every experiment, with how close it is; for a page, where each leads to its section."""
    heads = columns("experiment", "", "rows", "within 5 %", "predicted", "mean error", "largest error", long=("",))
    return Table(heads, [_overview_row(part) for part in done.parts])


def headline_table(done: Reproduction) -> Table:
    """The most meaningful rows, predicted ones first; see `texts.headlines`."""
    heads = columns("experiment", "row", "published", "ours", "error", "how", text=("experiment", "row", "how"))
    rows = []
    found = [(part, row) for part in done.parts for row in headlines(part)]
    for part, row in sorted(found, key=lambda one: one[1].kind is not RowKind.PREDICTED):
        mark = " ¹" if part.reason(row) else ""
        cells = (
            part.experiment.name, f"{row.label}, {row.unit}", published_text(row), ours_text(row),
            f"{error_text(row)}{mark}", row.how_text,
        )  # fmt: skip
        rows.append(TableRow(cells))
    return Table(heads, rows)


def _overview_row(part: Reproduced) -> TableRow:
    compared = [row for row in part.findings.rows if row.error is not None]
    errors = [abs(row.error or 0.0) for row in compared]
    predicted = [row for row in compared if row.kind is RowKind.PREDICTED]
    unexplained = any(reason.unexplained for reason in reasons_of(part))
    worst = max(errors, default=0.0)
    name = part.experiment.name
    return TableRow([
        Html(f'<a href="#{html(name)}">{html(name)}</a>'), part.experiment.title, numbers.count(len(errors)),
        numbers.count(sum(row.within(CLOSE) for row in compared)),
        f"{sum(row.within(CLOSE) for row in predicted)} of {len(predicted)}" if predicted else numbers.MISSING,
        numbers.share(sum(errors) / len(errors)) if errors else numbers.MISSING,
        Cell(numbers.share(worst), "bad" if unexplained else "warn" if worst > CLOSE else ""),
    ])  # fmt: skip


# Text of rows, identical on the terminal, in Markdown and on the page.

_SIGNS = {"=": "", "<": "< ", ">": "> ", "~": "≈ "}


def published_text(row: Row) -> str:
    """The published figure as it was printed, with its bound."""
    return _SIGNS[row.relation] + figure(row.published)


def ours_text(row: Row) -> str:
    """Our figure; a dash in a row that is only quoted."""
    if row.ours is None:
        return numbers.MISSING
    return f"{row.ours:,}" if isinstance(row.ours, int) else numbers.significant(row.ours)


def error_text(row: Row) -> str:
    """Signed per cent."""
    error = row.error
    if error is None:
        return ""
    if row.relation in "<>" and error == 0:
        return "holds"
    return f"{numbers.change(error)}, broken" if row.relation in "<>" else numbers.change(error)


def figure(value: float) -> str:
    """Shortest text of a figure: 2560 -> "2,560", 1.058 -> "1.058"."""
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def headlines(part: Reproduced) -> list[Row]:
    """Rows for the short table: those predicted or marked; if there are none, the one that is furthest off."""
    compared = [row for row in part.findings.rows if row.error is not None]
    marked = [row for row in compared if row.headline or row.kind is RowKind.PREDICTED]
    return marked or sorted(compared, key=lambda row: -abs(row.error or 0.0))[:1]


# Reasons for misses, each defined once for all the rows that share it.


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for missed figures. `rows`: text with the rows that it explains and their errors."""

    text: str
    rows: str

    @property
    def unexplained(self) -> bool:
        """Whether no reason is known."""
        return self.text == UNEXPLAINED


def reasons_of(part: Reproduced) -> list[Reason]:
    """Reasons of an experiment, in the order of its rows."""
    found: dict[str, list[str]] = {}
    for row in part.findings.rows:
        if reason := part.reason(row):
            found.setdefault(reason, []).append(f"{row.label} ({error_text(row)})")
    return [Reason(text, "; ".join(rows)) for text, rows in found.items()]


# report.md, and the short error table of serving/virtual/README.md.

HOW = (
    "`run`: scheduler, engines or transfers ran in virtual time. `model`: one question to the cost model. `predicted`: "
    "nothing was fitted to this figure, chosen in view of it or taken from its measurement; only these rows say how "
    "far to trust a prediction. `fitted`: something was, or a part of the answer was given. `derived`: arithmetic on "
    "published figures or on another row. `read back`: an input. `quoted`: another system's figure. A bound has an "
    "error only if it is broken."
)


def report_markdown(done: Reproduction) -> str:
    """The whole report without the plots."""
    lines = ["# Published figures reproduced", "", f"{_mode(done)} {done.score.text}.", "", HOW, ""]
    for part in done.parts:
        lines += _section(part)
    return "\n".join(lines).rstrip() + "\n"


def error_table_markdown(done: Reproduction) -> str:
    """The short table; see `headline_table`."""
    lines = [f"{done.score.text}.", "", *markdown_table(headline_table(done))]
    if any(part.reason(row) for part in done.parts for row in headlines(part)):
        lines += ["", "¹ The reason is in the report."]
    return "\n".join(lines) + "\n"


def _mode(done: Reproduction) -> str:
    return f"Seed {done.seed}{', quick' if done.quick else ''}."


def _section(part: Reproduced) -> list[str]:
    experiment, findings = part.experiment, part.findings
    lines = [f"## {experiment.name}: {experiment.title}", "", f"How: {experiment.method}.", ""]
    lines += markdown_table(rows_table(part))
    lines.append("")
    for reason in reasons_of(part):
        lead = f"**{reason.text}**" if reason.unexplained else f"Missed, because {reason.text}"
        lines.append(f"- {lead}: {reason.rows}.")
    lines += [f"- {note}" for note in findings.notes]
    return [*lines, ""] if lines[-1] else lines


# The reproduction on a terminal.

_COLUMNS = ("", "unit", "published", "ours", "error", "how")


class ExperimentProgress:
    """A bar over the experiments, each as long as it usually takes.

    Args:
        quiet: show no bar.
    """

    def __init__(self, experiments: Sequence[Experiment], *, quick: bool, quiet: bool) -> None:
        self._quick = quick
        self._bar = ProgressBar("", sum(self._size(one) for one in experiments), quiet=quiet)
        self._done = 0.0

    def __enter__(self) -> "ExperimentProgress":
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, at)

    def __call__(self, experiment: Experiment, done: bool) -> None:
        """See `reproduction.Progress`."""
        self._done += self._size(experiment) if done else 0.0
        self._bar.update(self._done, what=experiment.name)

    def _size(self, experiment: Experiment) -> float:
        return experiment.quick_seconds if self._quick else experiment.seconds


def print_reproduction(done: Reproduction, console: Console) -> None:
    """A table for each experiment, reasons under it, and the score."""
    for part in done.parts:
        console.print()
        console.print(Text(f"{part.experiment.name}: {part.experiment.title}", style="bold"))
        console.print(terminal_table(select(rows_table(part), *_COLUMNS), console.width))
        for reason in reasons_of(part):
            style = "bold red" if reason.unexplained else "yellow"
            lead = reason.text if reason.unexplained else f"Missed, because {reason.text}"
            console.print(Text(f"  {lead}: {reason.rows}.", style=style))
        for note in part.findings.notes:
            console.print(Text(f"  {note}", style="dim"))
    console.print()
    console.print(Text(HOW.replace("`", ""), style="dim"))
    console.print(Text(f"{done.score.text}.", style="bold red" if done.score.unexplained else "bold"))


def print_list(experiments: Sequence[Experiment], console: Console) -> None:
    """Names, titles and methods of the experiments."""
    heads = columns("name", "what", "how", long=("what", "how"))
    rows = [(experiment.name, experiment.title, experiment.method) for experiment in experiments]
    console.print(terminal_table(table_of(heads, rows), console.width))
