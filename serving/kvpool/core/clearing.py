"""Which run of slabs is cheapest to empty, when an object finds no room in spans of its own size.

Pieces of the region, free runs and whole spans, are passed once by a window that is just long enough. A window with a
pinned extent is out of the question; of the others the one whose hottest entry is the coldest wins. Models that are not
the coldest of all make a window worse than any window without.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from serving.kvpool.core.entry import Kind
from serving.kvpool.core.eviction import Rank
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.slab_allocator import Span

Heat = tuple[int, Rank]
"""0 = empty, 1 = context, 2 = a model that should stay; then the rank of the hottest entry."""

_EMPTY: Heat = (0, (0.0, 0))


@dataclass(frozen=True, slots=True)
class SlabRun:
    """Neighbouring slabs that could be emptied. `spans` are those in it; the rest is free."""

    spans: tuple[Span, ...]
    heat: Heat


class RunSearch:
    """One search for a run; throw it away afterwards, since it remembers how hot spans were."""

    def __init__(self, inventory: Inventory, coldest: int) -> None:
        """
        Args:
            coldest: the version that leaves first by policy order; this one may be a model.
        """
        self._inventory = inventory
        self._coldest = coldest
        self._heat: dict[int, Heat | None] = {}

    def around(self, span: Span, slabs: int) -> SlabRun | None:
        """The cheapest run of at least `slabs` slabs that contains this span."""
        total = self._inventory.allocator.slabs
        start = max(0, span.first_slab - slabs + 1)
        return self._search(start, min(total, span.first_slab + span.slabs + slabs - 1), slabs)

    def anywhere(self, slabs: int) -> SlabRun | None:
        """The cheapest run of at least `slabs` slabs of the whole region. O(entries): for large objects only."""
        return self._search(0, self._inventory.allocator.slabs, slabs)

    def _search(self, start: int, end: int, slabs: int) -> SlabRun | None:
        best: SlabRun | None = None
        window: deque[tuple[int, Span | None]] = deque()
        hottest: deque[tuple[int, Heat]] = deque()  # falling heat: the first is the hottest of the window
        length = dropped = 0
        for index, (size, span) in enumerate(self._pieces(start, end)):
            heat = _EMPTY if span is None else self._heat_of(span)
            if heat is None:
                dropped, length = index + 1, 0
                window.clear()
                hottest.clear()
                continue
            while hottest and hottest[-1][1] <= heat:
                hottest.pop()
            hottest.append((index, heat))
            window.append((size, span))
            length += size
            while length - window[0][0] >= slabs:
                length -= window.popleft()[0]
                dropped += 1
            while hottest[0][0] < dropped:
                hottest.popleft()
            if length >= slabs and (best is None or hottest[0][1] < best.heat):
                best = SlabRun(tuple(span for _size, span in window if span is not None), hottest[0][1])
        return best

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, Span | None]]:
        allocator = self._inventory.allocator
        slab = start
        while slab < end:
            span = allocator.span_of_slab(slab)
            if span is not None:
                yield span.slabs, span
                slab = span.first_slab + span.slabs
            else:
                yield 1, None
                slab += 1

    def _heat_of(self, span: Span) -> Heat | None:
        """None if a part of it is pinned."""
        if span.first_slab not in self._heat:
            self._heat[span.first_slab] = self._measure(span)
        return self._heat[span.first_slab]

    def _measure(self, span: Span) -> Heat | None:
        inventory = self._inventory
        heat = _EMPTY
        for offset in span.offsets():
            entry = inventory.at.get(offset)
            if entry is None:
                continue
            if entry.pinned:
                return None
            stays = entry.kind is Kind.MODEL and entry.version != self._coldest
            heat = max(heat, (2 if stays else 1, inventory.policy.rank(entry.version)))
        return heat
