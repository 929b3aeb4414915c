"""`loadgen report`."""

import argparse
from pathlib import Path

from loadgen.run_folder import REPORT, REQUESTS, SWEEP, read_records, read_result, read_sweep
from loadgen.run_report.report_file import write_report
from loadgen.server.series import read_series


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a run or of a sweep")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: DIR/report.html")


def run(flags: argparse.Namespace) -> int:
    """Write the report again.

    Raises: UsageError, TraceFormatError, OutputError.
    """
    folder = flags.folder
    path = flags.out or folder / REPORT
    if (folder / SWEEP).exists():
        write_report(path, read_sweep(folder))
    else:
        records = list(read_records(folder)) if (folder / REQUESTS).exists() else None
        write_report(path, read_result(folder), records=records, server_series=read_series(folder))
    print(path)
    return 0
