"""`loadgen compare`."""

import argparse
from pathlib import Path

from rich.console import Console

from loadgen.compare.table import compare_folders, comparisons_json, print_comparisons


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="baseline first, then what to hold against it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.epilog = "Repetitions (loadgen run --repeats N) give intervals that hold from run to run."


def run(flags: argparse.Namespace) -> int:
    """Compare every run with the first.

    Raises: UsageError, TraceFormatError.
    """
    comparisons = compare_folders(flags.runs)
    if flags.json:
        print(comparisons_json(comparisons))
    else:
        print_comparisons(comparisons, Console())
    return 0
