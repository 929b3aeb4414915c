"""A quantisation as seen from a terminal: a bar on stderr, the result as tables on stdout."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from serving.errors import ConfigError
from serving.quantize.report import RANDOM_NOTE, QuantizationReport, as_json, as_markdown, mean_error
from serving.quantize.run import REPORT_PAGE, quantise
from serving.quantize.settings import Settings
from serving.terminal import endings_as_interrupt, table_console


def run_on_console(model: Path, out: Path, files: Sequence[Path], settings: Settings, report_file: Path | None) -> int:
    """Quantise and tell.

    Returns: 0.
    Raises: what `quantise` raises; ConfigError if the report cannot be written.
    Effects: writes the folder and the report, prints.
    """
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with endings_as_interrupt(), bars as bar:
        task = bar.add_task("reading", total=None)
        report = quantise(
            model,
            out,
            files,
            settings,
            lambda what, done, of: bar.update(task, description=what, completed=done, total=of),
        )
    _print(report, out)
    if report_file is not None:
        _save(report, report_file)
    return 0


def _save(report: QuantizationReport, path: Path) -> None:
    text = as_json(report) if path.suffix == ".json" else as_markdown(report)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--report {path} cannot be written ({error.strerror})") from error


def _print(report: QuantizationReport, out: Path) -> None:
    console = table_console()
    table = Table(title=f"{report.model} in INT8, on {report.held_out_tokens:,} held-out tokens")
    for name in ("", "perplexity", "÷ original", "KL [nat]", "KL median", "top-1", "error"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("original", f"{report.perplexity:.4f}")
    for name, trial in report.trials.items():
        found = trial.accuracy
        cells = [f"{found.perplexity:.4f}", f"{found.perplexity / report.perplexity:.5f}"]
        cells += [f"{found.divergence:.2e}", f"{found.median_divergence:.2e}"]
        table.add_row(name, *cells, f"{found.agreement:.2%}", f"{mean_error(trial):.3%}")
    console.print(table)
    if report.random_text:
        console.print(RANDOM_NOTE)
    least = [min(seen.values()) for seen in report.expert_rows.values()]
    if least:
        console.print(f"The expert with the least calibration text saw {min(least):,} rows.")
    size = f"{report.bytes_before / 1e6:,.1f} MB -> {report.bytes_after / 1e6:,.1f} MB"
    console.print(f"{size} in {report.elapsed_s:,.0f} s: {out} (report: {out / REPORT_PAGE})", soft_wrap=True)
