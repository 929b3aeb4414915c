"""`cloudmatrix decisions`: what was changed about the pools, when, by whom and why."""

import argparse
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from serving.cli.system_options import add_dashboard_options, system_of
from serving.errors import SilentError
from serving.values.scaling import ReadDecisions

if TYPE_CHECKING:
    from serving.cli.pools_client import PoolsClient

DESCRIPTION = """\
Print the ledger of scaling decisions, oldest first: by the autoscaler, by the page, by hand.
"""
EPILOG = """\
Examples:
  cloudmatrix decisions --pool decode
  cloudmatrix decisions --follow
"""
POLL_S = 1.0
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--pool", metavar="POOL", help="only of this pool")
    parser.add_argument("--last", type=int, default=SHOWN, metavar="N", help=f"how many (default {SHOWN}, at most 200)")
    parser.add_argument("--follow", action="store_true", help="go on printing new ones until Ctrl-C")
    add_dashboard_options(parser)


def line(entry: dict[str, Any]) -> str:
    """One decision in one line."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
    change = f"{entry['before']} -> {entry['target']}" if entry["before"] != entry["target"] else f"{entry['target']}"
    return f"{at}  {entry['pool']:<10} {change:<8} {entry['kind']:<8} {entry['by']:<10} {entry['reason']}"


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger, and what comes after it if told to.

    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    system = system_of(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        _print(system, arguments)
    return 0


def _print(system: "PoolsClient", arguments: argparse.Namespace) -> None:
    known = system.decisions(ReadDecisions(arguments.pool))
    entries = known[: max(0, arguments.last)]
    after = known[0]["id"] if known else 0
    if not known and not arguments.follow:
        print("nothing was changed so far" if not arguments.json else "", end="\n" if not arguments.json else "")
    while True:
        for entry in reversed(entries):
            print(json.dumps(entry) if arguments.json else line(entry), flush=True)
        if not arguments.follow:
            return
        time.sleep(POLL_S)
        entries = _newer(system, arguments.pool, after)
        after = entries[0]["id"] if entries else after


def _newer(system: "PoolsClient", pool: str | None, after: int) -> list[dict[str, Any]]:
    """Entries after a given one; none while the board is started again, which takes a second.

    Raises: UnavailableError when the system has ended.
    """
    try:
        return system.decisions(ReadDecisions(pool, after))
    except SilentError:
        return []
