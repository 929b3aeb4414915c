"""The reproduction on a terminal."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.text import Text

from loadgen.progress_bar import ProgressBar
from loadgen.report.table import columns, select, table_of, terminal_table
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.markdown import HOW
from serving.tools.paper.reasons import reasons_of
from serving.tools.paper.reproduction import Reproduction
from serving.tools.paper.tables import rows_table

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
