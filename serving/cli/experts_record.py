"""`cloudmatrix experts record` and `trial`: a running group's routing in a file, and policies' placements for it."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from loadgen.progress_bar import ProgressBar
from loadgen.report import numbers
from serving.cli.experts_table import fetch_experts, order_experts
from serving.cli.status_table import plain_table
from serving.errors import ConfigError, NotWrittenError, UnavailableError
from serving.group.core.placement_policies import try_policies
from serving.group.core.routing_trace import RoutingTrace, TraceHead, read_trace, slices_of, trace_lines
from serving.terminal import table_console

MOST_BYTES = 256 << 20
"""Size of a file at which recording stops."""
AGAIN_S = 60.0
"""How long a group may not respond, as while its shell is replaced, before recording stops."""

Ask = Callable[[int | None], dict[str, Any]]
"""Rows of the slices after a given one, as in the response to `POST /experts/load`."""


class _Recording:
    """Received slices, and the time of the next poll.

    Args:
        ask: may raise UnavailableError.
        clock, sleep: of the caller.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._ask, self._clock, self._sleep = ask, clock, sleep
        first = ask(None)
        self.layers, self.experts = first["layers"], first["experts"]
        self.slice_s: float = first["slice_s"]
        self._last: int = first["last"]

    def batches(self, until: float) -> Iterator[list[dict[str, Any]]]:
        """Received slices, polled once per slice, until this time of the clock.

        Raises: UnavailableError if the group does not respond for too long.
        """
        silent_since: float | None = None
        while (now := self._clock()) < until:
            self._sleep(min(self.slice_s, until - now))
            try:
                answer = self._ask(self._last)
            except UnavailableError:
                silent_since = now if silent_since is None else silent_since
                if now - silent_since > AGAIN_S:
                    raise
                continue
            silent_since, self._last = None, answer["last"]
            yield answer["slices"]


def record(
    url: str,
    api_key: str | None,
    path: Path,
    *,
    group: str | None = None,
    duration_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    most_bytes: int = MOST_BYTES,
) -> str:
    """Write a group's routing to a file until Ctrl-C, a time limit or a size limit. Received slices are kept.

    Args:
        group: None = the only one.
        duration_s: None = until Ctrl-C.
    Returns: a description of the recording.
    Raises: UnavailableError if there is no group, or it no longer responds; ConfigError if the file cannot be
        written.
    Effects: writes the file, replacing an existing one.
    """
    recording = _Recording(
        lambda after: order_experts(url, api_key, "load", {"group": group, "after": after}), clock, sleep
    )
    names = [one["group"] for one in fetch_experts(url, api_key)["groups"]]
    head = TraceHead(group or (names[0] if names else ""), recording.layers, recording.experts, recording.slice_s)
    begun, count, why = clock(), 0, ""
    try:
        with path.open("wb") as file, ProgressBar("recording", duration_s) as bar:
            _write(file, trace_lines(head, ()))
            try:
                for slices in recording.batches(begun + duration_s if duration_s is not None else float("inf")):
                    count += len(slices)
                    _write(file, list(trace_lines(head, slices_of(slices)))[1:])
                    bar.update(clock() - begun, f"{count:,} slices of ranks, {numbers.size(file.tell())}")
                    if file.tell() >= most_bytes:
                        why = f", as much as a file may have ({numbers.size(most_bytes)})"
                        break
            except KeyboardInterrupt:
                why = ", until Ctrl-C"
    except OSError as error:
        raise NotWrittenError(f"cannot write {path}: {error.strerror or error}") from error
    lasted = numbers.duration(clock() - begun)
    return f"{path}: {count:,} slices of {recording.slice_s:g} s by rank, of {head.group}, in {lasted}{why}"


def load_trace(path: Path) -> RoutingTrace:
    """Read a file of `record`.

    Raises: ConfigError if it cannot be read; RoutingTraceError.
    """
    try:
        with path.open("rb") as file:
            return read_trace(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def print_trial(path: Path, ranks: int, redundant: int, *, as_json: bool) -> None:
    """Print how evenly each policy would have spread the rows of a trace.

    Raises: as `load_trace`; PlacementError.
    """
    trace = load_trace(path)
    results = try_policies(trace.loads(), ranks, redundant)
    if as_json:
        shown = [{"policy": one.policy, "balancedness": list(one.balancedness)} for one in results]
        print(json.dumps({"ranks": ranks, "redundant": redundant, "policies": shown}, indent=2))
        return
    console = table_console()
    table = plain_table(("policy",), ("balancedness", "worst layer", "imbalance"))
    for one in results:
        table.add_row(one.policy, f"{one.mean:.2f}", f"{one.worst:.2f}", f"{1 / one.mean:.2f}")
    console.print(table)
    console.print(
        f"{ranks} ranks, {redundant} redundant slots each; planned on every other slice of {trace.head.slice_s:g} s, "
        "judged on the rest; imbalance: the busiest rank's rows over the mean, as `hardware/cost` counts it",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _write(file: BinaryIO, lines: Iterable[bytes]) -> None:
    """Write lines and flush, so that they survive a kill and are visible immediately."""
    file.writelines(lines)
    file.flush()
