"""Reads found blocks into their places and verifies each; the first that fails ends the prefix.

    hint SSD blocks ─► copy those in memory ─► promote some ─► copy them ─► promote more ... ─► release all leases
         (the servers load them in parallel)        (they load the next ones meanwhile)

Blocks on SSD are read in small groups, and a group is released before the next is promoted: a server with less memory
than the prefix is long needs the room again. Loads are hinted some groups ahead of the copies, within `AHEAD_SHARE`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from serving.kvpool.core.entry import EntryTier, Found
from serving.kvpool.core.messages import Promote, Promoted, ReleaseLeases, Report
from serving.kvpool.core.operation import (
    LAST_WORD_S,
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolFailure,
    PoolPost,
    PoolRead,
    PoolReadDone,
    PoolWritten,
    undo,
)
from serving.kvpool.core.prefix_find import FoundPrefix
from serving.values.pool_outcome import FetchReport, MissReason

SSD_GROUP_BYTES = 8 << 20
SSD_GROUP_BLOCKS = 32
SSD_GROUP_SHARE = 0.125
"""Share of a server's memory that one reader may load at one time, since there are other readers."""
AHEAD_SHARE = 0.25
"""Share of the smallest server's memory that one reader may have loaded without having read it."""
_ANSWER_SHARE = 0.9  # of the time left a server may wait for its disk; the rest is for its answer to reach us


class LoadsAhead:
    """The order in which a reader has blocks loaded from SSD: in turn, bounded bytes ahead of what it has read."""

    __slots__ = ("_ahead_bytes", "_limit_bytes", "_loads", "_next", "_read")

    def __init__(self, loads: Sequence[tuple[int, int]], smallest_bytes: int) -> None:
        """
        Args:
            loads: place in the prefix and bytes of each block on SSD, in order.
            smallest_bytes: memory of the smallest server that has one.
        """
        self._loads = loads
        self._limit_bytes = int(smallest_bytes * AHEAD_SHARE)
        self._read = self._next = 0
        self._ahead_bytes = 0

    def next(self, start: int) -> list[int]:
        """Places of the blocks to be loaded now, once all blocks before place `start` are read. At least the next."""
        loads = self._loads
        while self._read < len(loads) and loads[self._read][0] < start:
            if self._read < self._next:
                self._ahead_bytes -= loads[self._read][1]
            self._read += 1
        self._next = max(self._next, self._read)
        found: list[int] = []
        while self._next < len(loads):
            place, nbytes = loads[self._next]
            if self._next > self._read and self._ahead_bytes + nbytes > self._limit_bytes:
                break
            self._ahead_bytes += nbytes
            self._next += 1
            found.append(place)
        return found


class PrefixRead:
    """One read. `result` is set when only releases of leases remain.

    Args:
        find: the found blocks, leased.
        wanted: number of leading blocks to read; 0 = only release the leases.
        capacity: returns the bytes of a server's memory.
        until: deadline of the last byte.
    """

    def __init__(self, find: FoundPrefix, wanted: int, capacity: Callable[[str], int], until: float) -> None:
        self.result: FetchReport | None = None
        self._find = find
        self._until = until
        self._wanted = self._end = min(len(find.found), wanted)
        self._reason: MissReason | None = None
        self._on_ssd = [index for index, found in enumerate(find.found[: self._end]) if found.tier is EntryTier.SSD]
        smallest = min([capacity(find.servers[index]) for index in self._on_ssd], default=0)
        self._groups = self._in_groups(smallest)
        self._ahead = LoadsAhead([(index, find.found[index].nbytes) for index in self._on_ssd], smallest)
        self._asked_from = 0
        self._promoting: dict[str, list[int]] = {}
        self._ready: dict[int, Found] = {}
        self._copying: Sequence[int] = ()
        self._read: dict[str, list[int]] = defaultdict(list)
        self._wrong: dict[str, list[int]] = defaultdict(list)
        self._releasing: dict[str, list[int]] = {}
        self._released: set[int] = set()

    def start(self, now: float) -> Sequence[PoolEffect]:
        """Read blocks in memory; before that, hint the first on SSD to servers, which load them in parallel."""
        on_ssd, end, found = self._on_ssd, self._end, self._find.found
        if len(on_ssd) == end:
            return self._next_group(now)
        if not on_ssd:
            return [self._copy(range(end), self._find.servers, found)]
        here = {index: found[index] for index in sorted({*range(end)}.difference(on_ssd))}
        return [*self._hints(self._ahead.next(0)), self._copy_some(here)]

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Take a response, a failure, or the end of copying.

        Returns: the next effects; at the end reports and releases.
        """
        if isinstance(event, PoolReadDone):
            return self._copied(event, now)
        indices = self._promoting.pop(event.server, None)
        if indices is None or isinstance(event, PoolWritten):
            return self._unasked(event)
        effects: list[PoolEffect] = []
        if isinstance(event, PoolFailure):
            self._fail(indices[0], event.reason)
        elif isinstance(event.message, Promoted):
            self._released.update(self._releasing.pop(event.server, ()))
            self._promoted(indices, event.message, now)
        else:
            self._fail(indices[0], MissReason.ERROR)
            effects.append(PoolClose(event.server))
        if not self._promoting:
            effects += self._copy_group(now)
        return effects

    def _hints(self, indices: Sequence[int]) -> list[PoolEffect]:
        """Let servers load blocks, without a response."""
        by_server = self._by_server(indices).items()
        return [PoolPost(server, Promote(self._versions(theirs), 0.0), self._until) for server, theirs in by_server]

    def _unasked(self, event: PoolAnswer | PoolFailure | PoolWritten) -> Sequence[PoolEffect]:
        """Take a hint or a release that failed, or a late response."""
        if isinstance(event, PoolFailure) and self.result is None:
            for index in self._on_ssd:
                if index >= self._asked_from and self._find.servers[index] == event.server:
                    self._fail(index, event.reason)
                    break
            return []
        return undo(event, self._until, ())

    def _fail(self, index: int, reason: MissReason) -> None:
        if index < self._end:
            self._end = index
            self._reason = reason

    def _copy(self, indices: Sequence[int], servers: Sequence[str], found: Sequence[Found]) -> PoolRead:
        self._copying = indices
        return PoolRead(indices, servers, found, self._until)

    def _copy_some(self, found: Mapping[int, Found]) -> PoolRead:
        return self._copy([*found], [self._find.servers[index] for index in found], [*found.values()])

    def _copied(self, event: PoolReadDone, now: float) -> Sequence[PoolEffect]:
        copying, self._copying = self._copying, ()
        if not copying:
            return []  # told twice
        find = self._find
        if self._on_ssd:
            for index in copying[: event.good]:
                self._read[find.servers[index]].append(find.found[index].version)
        if event.reason is not None:
            index = copying[event.good]
            if event.reason is MissReason.CHECKSUM:
                self._wrong[find.servers[index]].append(find.found[index].version)
            self._fail(index, event.reason)
        return self._next_group(now)

    def _next_group(self, now: float) -> Sequence[PoolEffect]:
        """Promote the next blocks on SSD, after releasing the room of those that were read; hint those after them."""
        group = next(self._groups, None)
        if group is None or group[0] >= self._end:
            return self._last_words(now)
        self._asked_from = group[0]
        self._promoting = self._by_server(group)
        wait_s = max((self._until - now) * _ANSWER_SHARE, 0.0)
        effects: list[PoolEffect] = []
        for server, indices in self._promoting.items():
            done = self._read.pop(server, None)
            if done:
                self._releasing[server] = done
                effects.append(PoolPost(server, ReleaseLeases(tuple(done)), self._until))
            effects.append(PoolAsk(server, Promote(self._versions(indices), wait_s), self._until))
        return effects + self._hints([index for index in self._ahead.next(group[0]) if index > group[-1]])

    def _in_groups(self, smallest: int) -> Iterator[list[int]]:
        group: list[int] = []
        nbytes = 0
        limit = min(SSD_GROUP_BYTES, int(smallest * SSD_GROUP_SHARE))
        for index in self._on_ssd:
            size = self._find.found[index].nbytes
            if group and (len(group) == SSD_GROUP_BLOCKS or nbytes + size > limit):
                yield group
                group, nbytes = [], 0
            group.append(index)
            nbytes += size
        if group:
            yield group

    def _promoted(self, indices: Sequence[int], answer: Promoted, now: float) -> None:
        late = self._until - now < LAST_WORD_S
        for index, found in zip_longest(indices, answer.found[: len(indices)]):  # too short an answer: all gone
            if found is None:
                self._fail(index, MissReason.TIMEOUT if late else MissReason.GONE)
            else:
                self._ready[index] = found

    def _copy_group(self, now: float) -> Sequence[PoolEffect]:
        ready, self._ready = self._ready, {}
        wanted = {index: ready[index] for index in sorted(ready) if index < self._end}
        return [self._copy_some(wanted)] if wanted else self._next_group(now)

    def _by_server(self, indices: Sequence[int]) -> dict[str, list[int]]:
        by_server: dict[str, list[int]] = defaultdict(list)
        for index in indices:
            by_server[self._find.servers[index]].append(index)
        return dict(by_server)

    def _versions(self, indices: Sequence[int]) -> tuple[int, ...]:
        return tuple([self._find.found[index].version for index in indices])

    def _last_words(self, now: float) -> Sequence[PoolEffect]:
        """Report wrong blocks and release all leases."""
        find = self._find
        good = find.found[: self._end]
        self.result = FetchReport(
            blocks=self._end,
            from_ssd=sum([found.tier is EntryTier.SSD for found in good]) if self._on_ssd else 0,
            lost_blocks=self._wanted - self._end + find.lost_blocks,
            reason=self._reason or find.reason,
            nbytes=sum([found.nbytes for found in good]),
        )
        leased: dict[str, list[int]] = defaultdict(list)
        released = self._released
        for server, found in zip(find.servers, find.found, strict=True):
            if not released or found.version not in released:
                leased[server].append(found.version)
        until = max(self._until, now + LAST_WORD_S)
        effects: list[PoolEffect] = [PoolPost(s, Report(tuple(wrong)), until) for s, wrong in self._wrong.items()]
        effects += [PoolPost(server, ReleaseLeases(tuple(versions)), until) for server, versions in leased.items()]
        return effects
