"""`loadgen compare`."""

import argparse
from pathlib import Path

from loadgen.compare.pairs import compare_paths
from loadgen.compare.report import comparison_page, comparisons_json, print_comparisons
from loadgen.run_report.report_file import write_page
from loadgen.terminal import terminal_console


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="the baseline first, then the runs to compare with it"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="also write a page with tables and charts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.epilog = "Repetitions (loadgen run --repeats N) give intervals that include the variation from run to run."


def run(flags: argparse.Namespace) -> int:
    """Compare every run with the first.

    Raises: UsageError, TraceFormatError; OutputError if the page cannot be written.
    Effects: replaces the page's file.
    """
    pairs = compare_paths(flags.runs)
    comparisons = [pair.comparison for pair in pairs]
    if flags.out:
        write_page(flags.out, comparison_page(pairs), pairs[0].baseline.results[0].version)
    if flags.json:
        print(comparisons_json(comparisons))
    else:
        print_comparisons(comparisons, terminal_console())
        if flags.out:
            print(flags.out)
    return 0
