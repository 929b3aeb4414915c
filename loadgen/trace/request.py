"""A request of a trace, independent of the format, and the interface of readers."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

NORMAL = "normal"


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        arrival_s: from the start of the trace [s]. Of one that follows: its arrival if responses took no time.
        input_tokens: of the whole prompt, at least 1. output_tokens: of the response; 0 if it is not known to have any.
        hash_ids: prefix identity of each of the prompt's leading blocks of `Trace.block_tokens` tokens, the last of
            which may be partial: equal numbers at equal positions mean an equal prompt up to them. Empty = unknown.
        session: its session; None = a request of no session.
        follows: sent `think_s` after the response to the previous request of its session, not at a time.
        waits_for: turns of its session, counted from 0, whose ends it waits for, if not just for the turn before.
        branch: the subagent of its session that sends it, from 1; 0 = the main line.
        stop: why the recorded response ended, such as "tool_use"; empty if unknown.
        tenant: group that it belongs to; may be empty.
        input_estimated: the prompt's tokens were not counted.
        conduct: how its client behaved, see `plan.Conduct`. body: the exact request body as text; None = not recorded.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: list[int] = []
    session: int | str | None = None
    follows: bool = False
    think_s: float = 0.0
    waits_for: tuple[int, ...] = ()
    branch: int = 0
    stop: str = ""
    tenant: str = ""
    input_estimated: bool = False
    conduct: str = NORMAL
    body: str | None = None


class Trace(Protocol):
    """The interface of each format's reader."""

    @property
    def path(self) -> Path:
        """File or folder."""

    @property
    def block_tokens(self) -> int | None:
        """Tokens per hash id; None = the format has no ids."""

    @property
    def interleaved(self) -> bool:
        """Whether requests of other sessions may be interleaved with those of a session."""

    @property
    def notes(self) -> dict[str, str]:
        """Remarks about what had to be made sense of, one sentence each; filled as the requests are read."""

    def requests(self) -> Iterator[TraceRecord]:
        """All requests, read from the file on each call, lazily; those that do not follow another ascend in time.

        Raises: TraceFormatError naming file and line, and what to do.
        """


def in_sessions(trace: Trace) -> Iterator[list[TraceRecord]]:
    """Requests by session: each list has a request and all that follow it; lists are in order of their first requests.

    Raises: TraceFormatError as `Trace.requests`.
    Effects: if sessions are interleaved, keeps all requests from the first session on in memory, since the last line
        of the trace may belong to it.
    """
    held: list[list[TraceRecord]] = []
    latest: dict[int | str | None, list[TraceRecord]] = {}
    for request in trace.requests():
        if request.follows:
            latest[request.session].append(request)
            continue
        if held and not trace.interleaved:
            yield held.pop()
            latest.clear()
        begun = [request]
        if request.session is None and not held:
            yield begun
            continue
        held.append(begun)
        latest[request.session] = begun
    yield from held


def repeated_blocks(ids: Sequence[int], seen: set[int]) -> int:
    """Number of leading blocks that are among those seen before.

    Args:
        ids: prefix ids, so that with an id all in front of it were seen, too.
    Effects: adds the ids to `seen`.
    """
    known = bisect_left(ids, True, key=lambda identity: identity not in seen)
    seen.update(ids[known:])
    return known
