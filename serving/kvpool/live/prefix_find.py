"""One round of lookups: the same question to all servers that may hold a block; the longest prefix of their answers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.errors import PoolError, PoolTimeoutError, PoolUnreachableError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Found, Space, Tier
from serving.kvpool.core.messages import Looked, Lookup, Release
from serving.kvpool.live.placement import Placement
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

EVERYBODY = 2
"""So many servers all hold, or are the fallback of, every block: no need to look into the ring."""

_Answer = tuple[ServerLink, Sequence[int], tuple[Found | None, ...]]
"""Who answered, about which hashes, and what."""


@dataclass(frozen=True, slots=True)
class PrefixFind:
    """What a lookup of consecutive blocks found.

    Args:
        found: entries of the leading blocks, without a gap.
        links: who has each of them; as many.
        connections: to which connection of a link its entries are leased.
        lost_blocks: blocks behind them that were found but are of no use, or could not be asked for, because `reason`
            made the gap; 0 if the pool just did not have the next block.
    """

    found: tuple[Found, ...] = ()
    links: tuple[ServerLink, ...] = ()
    connections: Mapping[ServerLink, int] = field(default_factory=dict)
    lost_blocks: int = 0
    reason: MissReason | None = None

    @property
    def blocks(self) -> int:
        """Leading blocks found."""
        return len(self.found)

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        return sum(found.nbytes for found in self.found)


def reason_of(error: PoolError) -> MissReason:
    """The word for an error of a link.

    Effects: none.
    """
    if isinstance(error, PoolTimeoutError):
        return MissReason.TIMEOUT
    return MissReason.UNREACHABLE if isinstance(error, PoolUnreachableError) else MissReason.ERROR


class LookupRound:
    """One lookup, thrown away afterwards."""

    def __init__(self, placement: Placement, hashes: Sequence[BlockHash], deadline: float) -> None:
        self._placement = placement
        self._hashes = hashes
        self._deadline = deadline
        self._asked: dict[str, Sequence[int]] = {}
        self._failed: dict[str, MissReason] = {}
        self._best: list[Found | None] = [None] * len(hashes)
        self._who: list[ServerLink | None] = [None] * len(hashes)

    def run(self, space: Space, lease_s: float) -> PrefixFind:
        """Asks everybody, reads all answers, releases what is of no use.

        Effects: leases on the blocks of the result.
        """
        self._group()
        answers = self._ask(space, lease_s)
        for answer in answers:
            self._compare(answer)
        end = self._best.index(None) if None in self._best else len(self._best)
        found = tuple([item for item in self._best[:end] if item is not None])
        links = tuple([link for link in self._who[:end] if link is not None])
        for answer in answers:
            self._release_surplus(answer, end)
        lost, reason = self._lost(end)
        return PrefixFind(found, links, {link: link.connection for link, _, _ in answers}, lost, reason)

    def _group(self) -> None:
        """Which server is asked for which hashes, by index."""
        links = self._placement.links
        if len(links) <= EVERYBODY:
            self._asked = dict.fromkeys(links, range(len(self._hashes)))
            return
        readers = self._placement.ring.readers
        asked: dict[str, list[int]] = defaultdict(list)
        for index, block in enumerate(self._hashes):
            for name in readers(block):
                asked[name].append(index)
        self._asked = dict(asked)

    def _ask(self, space: Space, lease_s: float) -> list[_Answer]:
        hashes, links = self._hashes, self._placement.links
        asked: list[tuple[ServerLink, Sequence[int]]] = []
        for name in self._asked:
            try:
                links[name].prepare(self._deadline)  # greetings of all new connections are under way at once
            except PoolError as error:
                self._failed[name] = reason_of(error)
        # Those that can be asked at once come first: they answer while others are waited for.
        order = self._asked if len(self._asked) == 1 else sorted(self._asked, key=lambda name: not links[name].prompt)
        for name in order:
            indices = self._asked[name]
            if name in self._failed:
                continue
            wanted = tuple(hashes) if len(indices) == len(hashes) else tuple([hashes[i] for i in indices])
            try:
                links[name].send(Lookup(space, wanted, lease_s), self._deadline)
                asked.append((links[name], indices))
            except PoolError as error:
                self._failed[name] = reason_of(error)
        answers: list[_Answer] = []
        for link, indices in asked:
            try:
                found = link.receive(Looked, self._deadline).found
                if len(found) != len(indices):
                    link.close()
                    raise PoolError(f"memory server {link.name} answered {len(found)} of {len(indices)} hashes")
                answers.append((link, indices, found))
            except PoolError as error:
                self._failed[link.name] = reason_of(error)
        return answers

    def _compare(self, answer: _Answer) -> None:
        """For each hash keeps the copy to read: memory before SSD, then the likelier holder."""
        link, indices, found = answer
        best, who = self._best, self._who
        for index, item in zip(indices, found, strict=True):
            if item is None:
                continue
            other = who[index]
            if other is None or self._better(link, item, other, index):
                best[index] = item
                who[index] = link

    def _better(self, link: ServerLink, item: Found, other: ServerLink, index: int) -> bool:
        rival = self._best[index]
        if rival is None or item.tier is not rival.tier:
            return item.tier is Tier.DRAM
        readers = self._placement.ring.readers(self._hashes[index])
        return link.name in readers and (
            other.name not in readers or readers.index(link.name) < readers.index(other.name)
        )

    def _release_surplus(self, answer: _Answer, end: int) -> None:
        link, indices, found = answer
        who = self._who
        surplus = [
            item.version
            for index, item in zip(indices, found, strict=True)
            if item is not None and (index >= end or who[index] is not link)
        ]
        if surplus:
            post_release(link, surplus, self._deadline)

    def _lost(self, end: int) -> tuple[int, MissReason | None]:
        if not self._failed or end == len(self._best):
            return 0, None
        readers = self._placement.ring.readers
        reason = next((self._failed[name] for name in readers(self._hashes[end]) if name in self._failed), None)
        if reason is None:
            return 0, None
        lost = sum(
            self._best[index] is not None or not self._failed.keys().isdisjoint(readers(self._hashes[index]))
            for index in range(end, len(self._best))
        )
        return lost, reason


def post_release(link: ServerLink, versions: Sequence[int], deadline: float) -> None:
    """Ends leases without waiting; if that fails they end with the connection, or by themselves.

    Effects: the entries may be evicted again.
    """
    try:
        link.post(Release(tuple(versions)), deadline)
    except PoolError:
        link.close()
