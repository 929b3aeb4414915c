"""A quantisation as seen from a terminal: a bar on stderr, the result as tables on stdout."""

from collections.abc import Sequence
from pathlib import Path

from loadgen.progress_bar import ProgressBar
from loadgen.report import numbers
from loadgen.report.table import select, terminal_table
from serving.terminal import endings_as_interrupt, table_console, write_file
from serving.tools.quantize.quantize_report import RANDOM_NOTE, QuantizationReport, accuracy_table, as_json, as_markdown
from serving.tools.quantize.quantize_run import REPORT_PAGE, quantise
from serving.tools.quantize.quantize_settings import Settings

_COLUMNS = ("", "perplexity", "÷ original", "KL [nat]", "KL median", "top-1", "error")
"""Columns that fit on a terminal."""


def run_on_console(
    model: Path, out: Path, files: Sequence[Path], settings: Settings, report_file: Path | None, *, quiet: bool
) -> int:
    """Quantise and print the result.

    Args:
        quiet: no progress.
    Returns: 0.
    Raises: what `quantise` raises; ConfigError if the report cannot be written.
    Effects: writes the folder and the report, prints.
    """
    with endings_as_interrupt(), ProgressBar("reading", counted=True, quiet=quiet) as bar:
        report = quantise(
            model,
            out,
            files,
            settings,
            lambda what, done, of: bar.update(done, what=what, total=of),
        )
    _print(report, out)
    if report_file is not None:
        _save(report, report_file)
    return 0


def _save(report: QuantizationReport, path: Path) -> None:
    text = as_json(report) if path.suffix == ".json" else as_markdown(report)
    write_file(path, text.encode())


def _print(report: QuantizationReport, out: Path) -> None:
    console = table_console()
    title = f"{report.model} in INT8, on {report.held_out_tokens:,} held-out tokens"
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(terminal_table(select(accuracy_table(report), *_COLUMNS), console.width))
    if report.random_text:
        console.print(RANDOM_NOTE)
    least = [min(seen.values()) for seen in report.expert_rows.values()]
    if least:
        console.print(f"The expert with the least calibration text saw {min(least):,} rows.")
    size = f"{numbers.size(report.bytes_before)} -> {numbers.size(report.bytes_after)}"
    console.print(
        f"{size} in {numbers.duration(report.elapsed_s)}: {out} (report: {out / REPORT_PAGE})", soft_wrap=True
    )
