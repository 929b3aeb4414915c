"""Reading found blocks into their places, each verified; the first that fails ends the prefix.

    hint SSD blocks ─► copy those in memory ─► promote some ─► copy them ─► promote more ... ─► release all leases
         (the server loads them meanwhile)

Blocks on SSD come in small groups, and a group is released before the next is asked for: a server with less memory
than the prefix is long needs the room again.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from hardware.errors import HardwareError
from hardware.ub.copy import Hashed, checksum, copy_checked
from serving.errors import PoolError, PoolRefusedError, PoolUnreachableError
from serving.kvpool.core.entry import Found, Tier
from serving.kvpool.core.messages import MAX_CHUNK_BYTES, Promote, Promoted, Release, Report
from serving.kvpool.core.operation import LAST_WORD_S, reason_of
from serving.kvpool.live.leased_prefix import LeasedPrefix
from serving.kvpool.live.segments import Mapped, Segments
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import FetchReport, MissReason

logger = logging.getLogger(__name__)

SSD_GROUP_BYTES = 8 << 20
SSD_GROUP_BLOCKS = 32
SSD_GROUP_SHARE = 0.125
"""Of a server's memory: what one reader may ask it to have loaded at one time; there are others."""
_ANSWER_SHARE = 0.9  # of the time left a server may wait for its disk; the rest is for its answer to reach us


class PrefixRead:
    """One read, thrown away afterwards.

    Args:
        targets: where the blocks go, in order; at most as many as were found are used.
    """

    def __init__(self, segments: Segments, find: LeasedPrefix, targets: Sequence[memoryview], deadline: float) -> None:
        self._segments = segments
        self._find = find
        self._links = [find.links[server] for server in find.prefix.servers]
        self._targets = targets
        self._deadline = deadline
        self._end = min(find.blocks, len(targets))
        self._reason: MissReason | None = None
        self._memory: dict[ServerLink, Mapped | None] = {}
        self._leased: dict[ServerLink, set[int]] = defaultdict(set)
        self._read: dict[ServerLink, list[int]] = defaultdict(list)
        self._wrong: dict[ServerLink, list[int]] = defaultdict(list)
        for link, found in zip(self._links, find.found, strict=True):
            self._leased[link].add(found.version)

    def run(self) -> FetchReport:
        """Reads.

        Effects: the leading targets hold verified blocks, those behind them anything; all leases are ended.
        """
        wanted = self._end
        try:
            on_ssd = [index for index in range(wanted) if self._find.found[index].tier is Tier.SSD]
            if len(on_ssd) < wanted:
                self._hint(on_ssd)
                self._read_memory()
            self._read_ssd(on_ssd)
        finally:
            self._last_words()
        good = self._find.found[: self._end]
        return FetchReport(
            blocks=self._end,
            from_ssd=sum(found.tier is Tier.SSD for found in good),
            lost_blocks=wanted - self._end + self._find.prefix.lost_blocks,
            reason=self._reason or self._find.prefix.reason,
            nbytes=sum(found.nbytes for found in good),
        )

    def _fail(self, index: int, reason: MissReason) -> None:
        if index < self._end:
            self._end = index
            self._reason = reason

    def _read_memory(self) -> None:
        for index, (link, found) in enumerate(zip(self._links, self._find.found, strict=True)):
            if index >= self._end:
                return
            if found.tier is Tier.DRAM:
                self._read_one(index, link, found)

    def _read_one(self, index: int, link: ServerLink, found: Found) -> None:
        target = self._targets[index]
        if time.monotonic() >= self._deadline:
            return self._fail(index, MissReason.TIMEOUT)
        try:
            mapped = self._memory[link] if link in self._memory else self._map(link)
            if mapped is not None:
                digest = copy_checked(target, mapped.view(found.offset, found.nbytes), hashed=Hashed.TARGET)
            else:
                digest = self._read_remote(link, found, target)
        except PoolRefusedError:
            return self._fail(index, MissReason.GONE)
        except PoolError as error:
            return self._fail(index, reason_of(error))
        except HardwareError as error:
            logger.warning("a block from memory server %s cannot be copied: %s", link.name, error)
            return self._fail(index, MissReason.ERROR)
        if digest != found.checksum:
            logger.warning("a block from memory server %s arrived with other bytes than were stored", link.name)
            self._wrong[link].append(found.version)
            return self._fail(index, MissReason.CHECKSUM)
        self._read[link].append(found.version)

    def _map(self, link: ServerLink) -> Mapped | None:
        """The server's memory, None if it has to be read through the connection."""
        self._memory[link] = mapped = map_of(self._segments, link)
        return mapped

    def _read_remote(self, link: ServerLink, found: Found, target: memoryview) -> int:
        if target.nbytes != found.nbytes:
            raise PoolError(f"a block of {found.nbytes} bytes does not fit into {target.nbytes}")
        flat = target.cast("B")
        for start in range(0, found.nbytes, MAX_CHUNK_BYTES):
            link.read(found.version, start, flat[start : start + MAX_CHUNK_BYTES], self._deadline)
        return checksum(flat)

    def _hint(self, on_ssd: Sequence[int]) -> None:
        """Tells servers what will be wanted, so that their disks work while we copy."""
        for link, indices in self._by_link(on_ssd).items():
            versions = tuple(self._find.found[index].version for index in indices)
            try:
                link.post(Promote(versions, 0.0), self._deadline)
            except PoolError as error:
                self._fail(indices[0], reason_of(error))

    def _read_ssd(self, on_ssd: Sequence[int]) -> None:
        for group in self._groups(on_ssd):
            if group[0] >= self._end:
                return
            for index, found in sorted(self._promoted(group).items()):
                if index < self._end:
                    self._read_one(index, self._links[index], found)

    def _groups(self, on_ssd: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        nbytes = 0
        smallest = min((self._links[index].record.capacity_bytes for index in on_ssd), default=0)
        limit = min(SSD_GROUP_BYTES, int(smallest * SSD_GROUP_SHARE))
        for index in on_ssd:
            size = self._find.found[index].nbytes
            if group and (len(group) == SSD_GROUP_BLOCKS or nbytes + size > limit):
                yield group
                group, nbytes = [], 0
            group.append(index)
            nbytes += size
        if group:
            yield group

    def _promoted(self, group: Sequence[int]) -> dict[int, Found]:
        """Blocks of a group that are in memory now; those that are not have failed."""
        by_link = self._by_link(group)
        for link, indices in list(by_link.items()):
            try:
                done = self._leased[link].intersection(self._read.pop(link, ()))
                if done:
                    self._leased[link] -= done
                    link.post(Release(tuple(done)), self._deadline)
                wait_s = max((self._deadline - time.monotonic()) * _ANSWER_SHARE, 0.0)
                versions = tuple(self._find.found[index].version for index in indices)
                link.send(Promote(versions, wait_s), self._deadline)
            except PoolError as error:
                self._fail(indices[0], reason_of(error))
                del by_link[link]
        ready: dict[int, Found] = {}
        for link, indices in by_link.items():
            try:
                answer = link.receive(Promoted, self._deadline).found
            except PoolError as error:
                self._fail(indices[0], reason_of(error))
                continue
            late = self._deadline - time.monotonic() < LAST_WORD_S
            for index, found in zip_longest(indices, answer[: len(indices)]):  # too short an answer: all gone
                if found is None:
                    self._fail(index, MissReason.TIMEOUT if late else MissReason.GONE)
                else:
                    ready[index] = found
        return ready

    def _by_link(self, indices: Sequence[int]) -> dict[ServerLink, list[int]]:
        by_link: dict[ServerLink, list[int]] = defaultdict(list)
        for index in indices:
            by_link[self._links[index]].append(index)
        return by_link

    def _last_words(self) -> None:
        """Reports what was wrong and ends all leases."""
        until = max(self._deadline, time.monotonic() + LAST_WORD_S)
        for link, versions in self._leased.items():
            if self._find.connections[link.name] != link.connection or link.welcome is None:
                continue  # that connection is over, and its leases with it
            try:
                if self._wrong[link]:
                    link.post(Report(tuple(self._wrong[link])), until)
            except PoolError:
                continue
            if versions:
                post_release(link, tuple(versions), until)


def post_release(link: ServerLink, versions: Sequence[int], deadline: float) -> None:
    """Ends leases without waiting; if that fails they end with the connection, or by themselves.

    Effects: the entries may be evicted again.
    """
    try:
        link.post(Release(tuple(versions)), deadline)
    except PoolError:
        link.close()


def map_of(segments: Segments, link: ServerLink) -> Mapped | None:
    """The memory of a link's server, if it can be mapped here: same node, and the file can be seen.

    Effects: the segment is mapped.
    """
    welcome = link.welcome
    if welcome is None or not link.local:
        return None
    try:
        return segments.get(welcome.segment, welcome.generation)
    except PoolUnreachableError as error:
        logger.debug("memory server %s is read through its connection: %s", link.name, error)
        return None
