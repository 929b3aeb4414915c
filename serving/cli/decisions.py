"""`cloudmatrix decisions`: what was changed about the pools, by whom and why, and what happened to their replicas."""

import argparse
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from serving.cli.system_options import add_dashboard_options, system_of
from serving.errors import SilentError
from serving.values.scaling import ReadDecisions, ReadEvents

if TYPE_CHECKING:
    from serving.client.pools_client import PoolsClient

DESCRIPTION = """\
Print scaling decisions (by the autoscaler, by the page, by hand) and events (died, frozen, replaced, left), oldest
first.
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
    """One decision or event in one line."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
    if "before" not in entry:
        return f"{at}  {entry['pool']:<10} {'':<8} {entry['kind']:<8} {entry['replica']:<10} {entry['text']}"
    change = f"{entry['before']} -> {entry['target']}" if entry["before"] != entry["target"] else f"{entry['target']}"
    return f"{at}  {entry['pool']:<10} {change:<8} {entry['kind']:<8} {entry['by']:<10} {entry['reason']}"


def run(arguments: argparse.Namespace) -> int:
    """Print what there was, and what comes after it if told to.

    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    system = system_of(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        _print(system, arguments)
    return 0


def _print(system: "PoolsClient", arguments: argparse.Namespace) -> None:
    feed = _Feed(system, arguments.pool)
    entries = feed.first()
    if not entries and not arguments.follow:
        print("nothing was changed so far" if not arguments.json else "", end="\n" if not arguments.json else "")
    entries = entries[max(0, len(entries) - max(0, arguments.last)) :]
    while True:
        for entry in entries:
            print(json.dumps(entry) if arguments.json else line(entry), flush=True)
        if not arguments.follow:
            return
        time.sleep(POLL_S)
        entries = feed.newer()


class _Feed:
    """Decisions and events of a system, each once, oldest first."""

    def __init__(self, system: "PoolsClient", pool: str | None) -> None:
        self._system = system
        self._pool = pool
        self._decisions = self._events = 0
        """Ids of the last ones that were read."""

    def first(self) -> list[dict[str, Any]]:
        """All that the board keeps, up to its limit for one answer."""
        decisions = self._system.decisions(ReadDecisions(self._pool, self._decisions))
        events = self._system.events(ReadEvents(self._pool, self._events))
        self._decisions = max(self._decisions, *(one["id"] for one in decisions), 0)
        self._events = max(self._events, *(one["id"] for one in events), 0)
        return sorted([*decisions, *events], key=lambda entry: float(entry["at"]))

    def newer(self) -> list[dict[str, Any]]:
        """Entries that came since; none while the board is started again, which takes a second.

        Raises: UnavailableError when the system has ended.
        """
        try:
            return self.first()
        except SilentError:
            return []
