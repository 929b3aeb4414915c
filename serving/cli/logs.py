"""`cloudmatrix logs [POOL|REPLICA]`: the logs of a system on this machine, merged by time."""

import argparse
import contextlib

from serving.cli.system_options import add_start_options, start_of

DESCRIPTION = """\
Print the last log lines of a system on this machine, ordered by time: of all its parts, or of one pool or replica.
Logs of replicas on other hosts are on those hosts. Ray's logs are in the same folder (--folder).
"""
EPILOG = """\
Examples:
  cloudmatrix logs -f
  cloudmatrix logs decode --last 50
  cloudmatrix logs --folder
"""
SHOWN = 200
POLL_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "part",
        nargs="?",
        metavar="POOL|REPLICA",
        help="gateway, decode, …, or a name that `cloudmatrix status` shows",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    parser.add_argument("--last", type=int, default=SHOWN, metavar="N", help=f"how many lines (default {SHOWN})")
    parser.add_argument("--folder", action="store_true", help="print the folder of all log files instead")
    add_start_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the lines.

    Raises: ConfigError if no part of the system has that name; UnavailableError if no system runs here.
    """
    import time

    from serving.telemetry.log_files import LogFiles

    start = start_of(arguments)
    if arguments.folder:
        print(start.logs.resolve())
        return 0
    files = LogFiles(start.logs, arguments.part)
    with contextlib.suppress(KeyboardInterrupt):
        lines = files.newer()
        for line in lines[max(0, len(lines) - max(0, arguments.last)) :]:
            print(line)
        while arguments.follow and start.logs.is_dir():
            time.sleep(POLL_S)
            for line in files.newer():
                print(line, flush=True)
    return 0
