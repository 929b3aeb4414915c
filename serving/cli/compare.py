"""`cloudmatrix compare`: comparison of two simulations."""

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Compare two simulations: settings that differ, every figure with its change, distributions and time lines of both in the
same plots. Reads what `cloudmatrix simulate --out` wrote. For runs against a live system use `loadgen compare`.
"""
EPILOG = """\
Examples:
  cloudmatrix compare run1 run2
  cloudmatrix compare run1 run2 --out comparison
--out writes compare.html. Runs that were simulated with --requests are compared request by request, too.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("baseline", type=Path, metavar="BASELINE", help="folder or result.json of the first run")
    parser.add_argument("other", type=Path, metavar="OTHER", help="folder or result.json to compare with it")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write compare.html there")
    parser.add_argument("--json", action="store_true", help="print figures and settings as JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Compare, and show or write the result.

    Raises: ConfigError in one line.
    """
    from loadgen.terminal import terminal_console
    from serving.terminal import make_folder, table_console, write_file
    from serving.virtual.comparison.comparison import compare_runs
    from serving.virtual.comparison.comparison_report import comparison_json, comparison_page, print_comparison
    from serving.virtual.comparison.run_file import read_run

    compared = compare_runs(read_run(arguments.baseline), read_run(arguments.other))
    if arguments.json:
        sys.stdout.write(comparison_json(compared).decode())
    else:
        print_comparison(compared, table_console())
    if arguments.out is not None:
        make_folder(arguments.out)
        write_file(arguments.out / "compare.html", comparison_page(compared).encode())
        terminal_console(stderr=True).print(f"wrote {arguments.out / 'compare.html'}", highlight=False, soft_wrap=True)
    return 0
