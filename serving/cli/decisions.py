"""`cloudmatrix decisions`: changes of the pools with author and reason, and events of their replicas."""

import argparse
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from serving.cli.system_options import add_dashboard_options, system_of
from serving.errors import SilentError
from serving.values.scaling_operations import ReadDecisions, ReadEvents
from serving.values.system_tally import FIRST_STEP, PHASES, TOTAL

if TYPE_CHECKING:
    from serving.client.pools_client import PoolsClient

DESCRIPTION = """\
Print scaling decisions (by the autoscaler, by the page, by hand) and events (started, died, frozen, replaced, left),
oldest first; or how long starts of replicas took, by phase.
"""
EPILOG = """\
Examples:
  cloudmatrix decisions --pool decode
  cloudmatrix decisions --follow
  cloudmatrix decisions --starts
"""
POLL_S = 1.0
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_list_options(parser)
    parser.add_argument(
        "--starts", action="store_true", help="print medians of the latest starts instead, by pool and phase"
    )
    add_dashboard_options(parser)


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Options for a list of entries that can be followed."""
    parser.add_argument("--pool", metavar="POOL", help="only of this pool")
    parser.add_argument("--last", type=int, default=SHOWN, metavar="N", help=f"how many (default {SHOWN}, at most 200)")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new ones until Ctrl-C")


def line(entry: dict[str, Any]) -> str:
    """One decision or event in one line."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
    if "before" not in entry:
        return f"{at}  {entry['pool']:<10} {'':<8} {entry['kind']:<8} {entry['replica']:<10} {entry['text']}"
    change = f"{entry['before']} -> {entry['target']}" if entry["before"] != entry["target"] else f"{entry['target']}"
    waits = f" ({entry['waits_s']:.0f} s)" if entry.get("waits_s") is not None else ""
    return f"{at}  {entry['pool']:<10} {change:<8} {entry['kind']:<8} {entry['by']:<10} {entry['reason']}{waits}"


def starts_text(starts: dict[str, dict[str, float]], pool: str | None) -> str:
    """A table of the costs of starts, and the settings to simulate with them."""
    rows = {name: phases for name, phases in starts.items() if pool in (None, name) and TOTAL in phases}
    if not rows:
        return "no replica has started since the scaling board started"
    columns = [TOTAL, *PHASES, FIRST_STEP]
    lines = [f"{'seconds':<10}{''.join(f'{column:>11}' for column in columns)}"]
    for name, phases in rows.items():
        cells = (f"{phases[column]:11.2f}" if column in phases else f"{'-':>11}" for column in columns)
        lines.append(f"{name:<10}{''.join(cells)}")
    engines = [phases[TOTAL] for name, phases in rows.items() if name != "kvcache"]
    if engines:
        lines.append(f"simulate with the slowest of them: --set simulation.start_s={max(engines):.1f}")
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """Print the recorded entries, and with `--follow` later ones.

    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    system = system_of(arguments)
    if arguments.starts:
        starts = system.state()["starts"]
        print(json.dumps(starts) if arguments.json else starts_text(starts, arguments.pool))
        return 0
    return print_entries(arguments, system)


def print_entries(arguments: argparse.Namespace, system: "PoolsClient | None" = None, *, decisions: bool = True) -> int:
    """Print the recorded entries, and with `--follow` later ones until Ctrl-C. Returns: 0.

    Args:
        system: None = the one of the options.
        decisions: whether to print decisions about pools beside the events of replicas.
    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    with contextlib.suppress(KeyboardInterrupt):
        _print(system or system_of(arguments), arguments, decisions=decisions)
    return 0


def _print(system: "PoolsClient", arguments: argparse.Namespace, *, decisions: bool) -> None:
    feed = _Feed(system, arguments.pool, decisions=decisions)
    entries = feed.first()
    if not entries and not arguments.follow:
        print("nothing has changed so far" if not arguments.json else "", end="\n" if not arguments.json else "")
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

    def __init__(self, system: "PoolsClient", pool: str | None, *, decisions: bool) -> None:
        self._system, self._with_decisions = system, decisions
        self._pool = pool
        self._decisions = self._events = 0
        """Ids of the last entries read."""

    def first(self) -> list[dict[str, Any]]:
        """All stored entries, up to the board's limit per response."""
        asked = ReadDecisions(self._pool, self._decisions)
        decisions = self._system.decisions(asked) if self._with_decisions else []
        events = self._system.events(ReadEvents(self._pool, self._events))
        self._decisions = max(self._decisions, *(one["id"] for one in decisions), 0)
        self._events = max(self._events, *(one["id"] for one in events), 0)
        return sorted([*decisions, *events], key=lambda entry: float(entry["at"]))

    def newer(self) -> list[dict[str, Any]]:
        """Entries added since the last call; none while the board restarts, which takes a second.

        Raises: UnavailableError after the system has ended.
        """
        try:
            return self.first()
        except SilentError:
            return []
