"""Maps blocks to memory servers: consistent hashing, so that adding or removing a server moves only its own share.

Every server has `vnodes` points on a circle, its virtual nodes. A block belongs to the server of the next point
clockwise from its hash, and falls back to the next *other* server. The place of a point depends only on the name of its
server. So every process computes the same owners without communication, and the replacement of a dead server, which
takes over its name, takes over its keys.

A young server uses only the first of its points and gets more of them as its weight grows: keys move to it and never
between others. The previous owner of a key is found without being stored:

    one server was added      the old owner is the fallback
    one server was removed    its keys were handed, or lost, to the fallback
    several are young         the old owner is the first server clockwise of full weight

A draining server has no points. It hands over its keys in any order, so readers query it for all of them until it ends.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

from serving.ids import NodeId
from serving.values.pool_view import PoolView

VNODES = 512
"""Shares of the keys then differ from the fair one by 4 % (standard deviation). A prefix is lost with its first evicted
block, so that the fullest server decides: on recorded traces 512 instead of 128 points find 0.5 to 1.4 % of all blocks
more, and 2,048 another 0.1 to 0.7 %. Part of the format: with another number, or other places, the blocks of a kept SSD
folder belong elsewhere.
"""

_CELL_BITS = 12
"""The circle is cut into 2^12 cells, so that few points are left to search: four in a cell, with 32 servers."""

_ARCS = 1 << 16
"""And into 2^16 arcs, by the two leading bytes: with 32 servers, three of four have no point, and thus one primary;
most others have one."""

_Arc = str | tuple[bytes, str, str] | None
"""The primary of an arc; its only point with the primaries before and from it on; None if it has several points."""

POINT_BYTES = 8
"""2^64 places: even 384 servers with 512 points each share one with a chance of 10^-9."""


@dataclass(frozen=True, slots=True)
class RingServer:
    """A server of the ring.

    Args:
        weight: share of its points in use, up to 1 (full); 0 = draining.
    """

    name: str
    weight: float


class HashRing:
    """An immutable ring. Building one takes 2 ms for 8 servers, 0.3 s for 384."""

    __slots__ = ("_before", "_of_arc", "_owners", "_points", "_readers", "draining")

    def __init__(self, servers: Collection[RingServer], vnodes: int = VNODES) -> None:
        """
        Args:
            servers: in any order, with distinct names.
            vnodes: points of a server of full weight.
        """
        self.draining = tuple(sorted(s.name for s in servers if s.weight <= 0))
        """Servers that own no key but may hold any entry."""
        settled = {s.name for s in servers if s.weight >= 1}
        # By point, then name: the order of `servers` must not matter, not even when two points coincide.
        points = sorted((point, s.name) for s in servers if s.weight > 0 for point in _points(s, vnodes))
        self._points = [point for point, _ in points]
        counts = [0] * (1 + (1 << _CELL_BITS))
        for cell in map(_cell, self._points):
            counts[cell + 1] += 1
        self._before = [*accumulate(counts)]  # points before each cell, and before the end
        names = [name for _, name in points]
        # One entry more than points: a hash behind the last point belongs to the first one.
        self._owners = _around(_owners_by_point(names))
        self._readers = _around(_readers_by_point(names, self._owners, settled, self.draining))
        self._of_arc: list[_Arc] = []  # see `primaries`

    def owners(self, hash: bytes) -> tuple[str, ...]:
        """(primary, fallback); shorter when there are fewer servers. The primary is where a block is written.

        Args:
            hash: at least 8 bytes, evenly spread: a digest.
        """
        return self._owners[self._index(hash)] if self._owners else ()

    def primary(self, hash: bytes) -> str | None:
        """The server a block is written to; None while there is none."""
        return self._owners[self._index(hash)][0] if self._owners else None

    def primaries(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Primaries of many hashes; see `primary`."""
        if not self._owners:
            return [None] * len(hashes)
        if not self._of_arc:  # who asks for many asks often; others need not wait for the table
            self._of_arc = _primaries_by_arc(self._points, self._owners)
        of_arc = self._of_arc
        found: list[str | None] = []
        for hash in hashes:
            arc = of_arc[hash[0] << 8 | hash[1]]
            if isinstance(arc, str):
                found.append(arc)
            elif arc is None:
                found.append(self._owners[self._index(hash)][0])
            else:
                point, before, after = arc
                found.append(before if hash < point else after)
        return found

    def readers(self, hash: bytes) -> tuple[str, ...]:
        """All servers that may hold a block, to be queried in the same round: most likely holder first.

        These are the owners, the first server of full weight clockwise if it is neither, and every draining server. In
        a pool without recent changes they are just the owners.
        """
        return self._readers[self._index(hash)] if self._readers else self.draining

    def _index(self, hash: bytes) -> int:
        cell, before = _cell(hash), self._before
        return bisect_right(self._points, hash, before[cell], before[cell + 1])


def _cell(place: bytes) -> int:
    return place[0] << _CELL_BITS - 8 | place[1] >> 16 - _CELL_BITS


def ring_of(view: PoolView, node: NodeId | None = None) -> HashRing:
    """The ring of a view.

    Args:
        node: only servers of this node take part (scope `node`: every node is a pool of its own).
    """
    return HashRing([RingServer(s.record.name, s.weight) for s in view.servers if node in (None, s.record.node)])


def _points(server: RingServer, vnodes: int) -> list[bytes]:
    """Places of a server's points. Big-endian order: bytes compare like the numbers that they encode."""
    count = max(1, round(min(server.weight, 1.0) * vnodes))
    # One digest gives eight points: at 384 servers hashing would else be half of the work.
    name = server.name.encode()
    digests = b"".join([blake2b(b"%b#%d" % (name, i)).digest() for i in range((count + 7) // 8)])
    return [digests[at : at + POINT_BYTES] for at in range(0, count * POINT_BYTES, POINT_BYTES)]


def _owners_by_point(names: Sequence[str]) -> list[tuple[str, ...]]:
    second = _next_clockwise(names, set(names))
    return [(name, other) if other is not None else (name,) for name, other in zip(names, second, strict=True)]


def _readers_by_point(
    names: Sequence[str], owners: Sequence[tuple[str, ...]], settled: Collection[str], draining: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """Owners, then the nearest settled server clockwise, then the draining ones; each once."""
    if not draining and all(one in settled for one in set(names)):
        return list(owners[: len(names)])
    readers = []
    for index, behind in enumerate(_next_clockwise(names, settled)):
        # A settled primary is itself the nearest settled one.
        extra = () if names[index] in settled or behind is None or behind in owners[index] else (behind,)
        readers.append(owners[index] + extra + draining)
    return readers


def _next_clockwise(names: Sequence[str], among: Collection[str]) -> list[str | None]:
    """For each point, the nearest other name of `among` behind it, around the end; None if there is none.

    One backward pass: `near` is the nearest point's name of `among`, `other` the nearest name that is not `near`.
    """
    near: str | None = None
    other: str | None = None
    found: list[str | None] = [None] * len(names)
    # Twice around: after the first time `near` and `other` know what follows the last point.
    for index in [*reversed(range(len(names))), *reversed(range(len(names)))]:
        name = names[index]
        found[index] = near if near != name else other
        if name in among and name != near:
            other = near
            near = name
    return found


def _primaries_by_arc(points: Sequence[bytes], owners: Sequence[tuple[str, ...]]) -> list[_Arc]:
    found: list[_Arc] = []
    for index, point in enumerate(points):  # `owners` has one more: behind the last point
        primary, following = owners[index][0], owners[index + 1][0]
        arc = point[0] << 8 | point[1]
        if arc >= len(found):
            found += [primary] * (arc - len(found))
            found.append((point, primary, following))
        else:
            found[arc] = None
    return found + [owners[-1][0]] * (_ARCS - len(found))


def _around(by_point: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [*by_point, *by_point[:1]]
