"""Eviction from DRAM: on demand for one extent, ahead of demand between the water marks, and by quota.

An entry that is on SSD as well, or that SSD cannot take, leaves at once. Any other entry is written to SSD first, and
its extent is free after that. Until then a writer that needs the room gets FULL; it does not wait.

Room for one extent is taken, in this order, from
    1. a free block of its size class, or free slabs,
    2. the coldest entry of the same size class among the coldest of all, unless whole slabs are colder,
    3. the run of slabs that is cheapest to empty: memory moves to the requested size.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from serving.kvpool.core.entry import Entry, Kind
from serving.kvpool.core.guards import PIN
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.queue_order import Rank
from serving.kvpool.core.slab_allocator import Span
from serving.kvpool.core.spills import Spills, SpillStart

# Which run of slabs is cheapest to empty, when an object finds no room in spans of its own size.
#
# Pieces of the region, free runs and whole spans, are passed once by a window that is just long enough. A window with a
# pinned extent is out of the question; of the others the one whose hottest entry is the coldest wins. Models that are
# not the coldest of all make a window worse than any window without.

Heat = tuple[int, Rank]
"""0 = empty, 1 = context, 2 = a model or a claimed entry that should stay; then the rank of the hottest entry."""

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
            if entry.pinned or entry.guards >= PIN:
                return None
            stays = entry.guards >= inventory.stays_from or (
                entry.kind is Kind.MODEL and entry.version != self._coldest
            )
            heat = max(heat, (2 if stays else 1, inventory.policy.rank(entry.version)))
        return heat


# Eviction from DRAM: on demand for one extent, and ahead of demand between the water marks.

_LOOKS = (1, 16, 64)
"""Number of coldest entries that are checked for one of the right size: usually the first one is."""
_SPANS_LOOKED_AT = 8
_SMALL_RUN = 8
"""Runs of up to so many slabs are searched around the coldest entries only, longer ones everywhere."""
_EVICTIONS_PER_TICK = 1024
_CLEARING_S = 2.0
"""For so long no entry is put into a run that is being emptied. Longer than SSD takes for a run of some slabs."""


def _movable(entry: Entry) -> bool:
    return entry.in_dram and not entry.pinned


class Evictor:
    """Makes room in DRAM."""

    def __init__(self, inventory: Inventory, spills: Spills) -> None:
        self._inventory = inventory
        self._allocator = inventory.allocator
        self._policy = inventory.policy
        self._guards = inventory.guards
        self._by_version = inventory.by_version
        self._ssd_bytes = inventory.settings.ssd_bytes
        self._spills = spills
        capacity = inventory.allocator.capacity_bytes
        self._high = inventory.settings.high_water * capacity
        self._low = inventory.settings.low_water * capacity
        self._relieving = False
        self._clearing: tuple[Span, ...] = ()
        self.clearing_until: float | None = None

    # On demand

    def extent(self, nbytes: int, now: float) -> int | None:
        """An extent for an object; may evict entries and start spills. Claimed entries leave if no others can.

        Returns: its offset; None if there is no room now, though there may be soon.
        """
        offset = self._unclaimed(nbytes, now)
        if offset is None and self._guards.retained_bytes:
            offset = self._claimed(nbytes, now)
        return offset

    def _claimed(self, nbytes: int, now: float) -> int | None:
        """An extent of the retained entry that leaves first, if one can leave at once."""
        allocator = self._allocator
        block = allocator.block_bytes(nbytes)

        def fits(entry: Entry) -> bool:
            if not entry.in_dram or entry.pinned or not self._leaves_at_once(entry):
                return False
            span = allocator.span_at(entry.offset)
            return span.block_bytes == block and not span.closed

        entry = self._give_up(fits)
        if entry is not None:
            self._inventory.leave_dram(entry)
            return allocator.allocate(nbytes)
        if self._policy.first(self._may_leave) is None and self._guards.give_up(_movable) is not None:
            return self._unclaimed(nbytes, now)  # starts to write or to clear, as for any other entry
        return None

    def _unclaimed(self, nbytes: int, now: float) -> int | None:
        offset = self._allocator.allocate(nbytes)
        if offset is None:
            offset = self._hand_over(nbytes)
        if offset is None and self._make_room(nbytes, now):
            offset = self._allocator.allocate(nbytes)
        return offset

    def _hand_over(self, nbytes: int) -> int | None:
        """The extent of the coldest entry, if that fits and can be had at once: what a full server mostly does.

        It is what `_make_room` and `allocate` would come to, without melting a span only to cut it again.
        """
        version = self._policy.first(self._may_leave)
        if version is None:
            return None
        entry = self._by_version[version]
        if entry.guards:
            entry = self._instead(entry)
        if (entry.on_ssd or not 0 < entry.nbytes <= self._ssd_bytes) and self._allocator.reusable(entry.offset, nbytes):
            return self._inventory.make_way(entry, nbytes)
        return None

    def _make_room(self, nbytes: int, now: float) -> bool:
        """Whether another try to allocate is worth it."""
        block = self._allocator.block_bytes(nbytes)
        coldest: list[Entry] = []
        twin: Entry | None = None
        for look in _LOOKS:
            coldest = self._coldest(look)
            twin = self._twin(coldest, block)
            if len(coldest) < look or (twin is not None and (look > 1 or self._leaves_at_once(twin))):
                break
        if not coldest:
            return False
        if twin is not None:
            run = self._colder_run(coldest, twin, nbytes)
            return self._evict(twin) is SpillStart.NO_ROOM if run is None else self._clear(run, now)
        if self._clearing:
            self._go_on_clearing()
            return False
        run = self._cheapest_run(coldest, nbytes)
        return run is not None and self._clear(run, now)

    def _twin(self, coldest: list[Entry], block: int) -> Entry | None:
        """The coldest entry of a size class; preferably one that needs no write before it leaves."""
        dirty: Entry | None = None
        for index, entry in enumerate(coldest):
            if entry.kind is Kind.MODEL and index:
                continue  # others are colder: models stay longer than context
            span = self._allocator.span_at(entry.offset)
            if span.block_bytes == block and not span.closed:
                if self._leaves_at_once(entry):
                    return entry
                dirty = dirty or entry
        return dirty

    def _colder_run(self, coldest: list[Entry], twin: Entry, nbytes: int) -> SlabRun | None:
        """A run of slabs whose entries are all colder than the twin, and leave as fast: then the twin may stay."""
        colder = coldest[: coldest.index(twin)]
        spans = [self._allocator.span_at(entry.offset) for entry in colder]
        if self._clearing or not any(span.used == spans.count(span) for span in set(spans)):
            return None
        run = self._cheapest_run(colder, nbytes)
        if run is None or run.heat >= (1, self._inventory.policy.rank(twin.version)):
            return None
        return (
            run
            if not self._leaves_at_once(twin) or all(map(self._leaves_at_once, self._entries_in(run.spans)))
            else None
        )

    def _cheapest_run(self, coldest: list[Entry], nbytes: int) -> SlabRun | None:
        lengths = self._allocator.span_lengths(nbytes)
        for slabs in dict.fromkeys((lengths[0], lengths[-1])):
            run = self._search_run(coldest, slabs)
            if run is not None:
                return run
        return None

    def _search_run(self, coldest: list[Entry], slabs: int) -> SlabRun | None:
        search = RunSearch(self._inventory, coldest[0].version)
        if slabs > _SMALL_RUN:
            return search.anywhere(slabs)
        spans = dict.fromkeys(self._allocator.span_at(entry.offset) for entry in coldest)
        runs = [search.around(span, slabs) for span in list(spans)[:_SPANS_LOOKED_AT]]
        found = [run for run in runs if run is not None]
        if found and min(run.heat for run in found)[0] < 2:
            return min(found, key=lambda run: run.heat)
        return search.anywhere(slabs)

    def _clear(self, run: SlabRun, now: float) -> bool:
        """Empty a run. Entries that are written first keep it closed until that is complete, or took too long."""
        self._clearing = run.spans
        self.clearing_until = now + _CLEARING_S
        for span in run.spans:
            self._allocator.close(span)
        self._go_on_clearing()
        if any(span.used for span in run.spans):
            return False
        self._end_clearing()
        return True

    def _go_on_clearing(self) -> None:
        for entry in self._entries_in(self._clearing):
            if not entry.pinned and entry.guards < PIN and self._evict(entry) is SpillStart.BUSY:
                return

    def _end_clearing(self) -> None:
        for span in self._clearing:
            self._allocator.reopen(span)
        self._clearing, self.clearing_until = (), None

    # Ahead of demand

    @property
    def pressed(self) -> bool:
        """Whether entries should leave ahead of demand."""
        return self._relieving or self._filled() > self._high

    def relieve(self, now: float) -> None:
        """Evict the coldest entries from above the high water mark down to the low one, a bounded number per call.

        First continues to clear a span if that was started.
        """
        if self._clearing:
            if now >= (self.clearing_until or now) or not any(span.used for span in self._clearing):
                self._end_clearing()
            else:
                self._go_on_clearing()
        if not self.pressed:
            return
        self._relieving = True
        budget = _EVICTIONS_PER_TICK
        while self._filled() > self._low and budget > 0:
            entry = next(iter(self._coldest(1)), None) or self._guards.give_up(_movable)
            if entry is None or self._evict(entry) is SpillStart.BUSY:
                break
            budget -= 1
        if self._filled() <= self._low:
            self._relieving = False

    def _filled(self) -> int:
        """Bytes that are allocated, less those of entries on their way to the SSD."""
        return self._allocator.charged_bytes - self._spills.leaving_bytes

    # One entry

    def _coldest(self, limit: int) -> list[Entry]:
        by_version = self._by_version
        versions = self._policy.coldest(limit, self._may_leave)
        entries = [by_version[version] for version in versions]
        for place, entry in enumerate(entries):
            if entry.guards:
                entries[place] = other = self._instead(entry)
                if other in entries[place + 1 :]:
                    entries[entries.index(other, place + 1)] = entry
        return entries

    def _instead(self, entry: Entry) -> Entry:
        """The entry that leaves in the place of a claimed one: of the same namespace, never of another; or itself."""

        def fits(one: Entry) -> bool:
            return _movable(one) and one.nbytes == entry.nbytes

        other = self._inventory.own.instead(entry, self._may_step_in) or self._guards.give_up(fits, entry.account)
        if other is None or other is entry:
            return entry
        self._policy.swap(entry.version, other.version)
        return other

    def _give_up(self, wanted: Callable[[Entry], bool]) -> Entry | None:
        """A retained entry that now may leave: of the namespace whose turn it is, if that has one."""
        if not self._inventory.alone:
            coldest = self._policy.coldest(_LOOKS[-1], self._may_leave)
            for account in dict.fromkeys([self._by_version[version].account for version in coldest]):
                entry = self._guards.give_up(wanted, account) if account.retained_bytes else None
                if entry is not None:
                    return entry
        return self._guards.give_up(wanted)

    def _may_step_in(self, version: int) -> bool:
        entry = self._by_version[version]
        return self._may_leave(version) and not entry.guards and entry.kind is not Kind.MODEL

    def _may_leave(self, version: int) -> bool:
        entry = self._by_version[version]
        return not (  # `pinned`, spelled out: this is asked more often than anything else
            entry.leases
            or entry.guards >= self._inventory.stays_from
            or entry.holders
            or entry.spilling
            or entry.loading
            or entry.hidden
            or entry.writer is not None
        )

    def _entries_in(self, spans: Iterable[Span]) -> list[Entry]:
        at = self._inventory.at
        return [at[offset] for span in spans if span.used for offset in span.offsets() if offset in at]

    def _leaves_at_once(self, entry: Entry) -> bool:
        return entry.on_ssd or not self._spills.possible(entry)

    def _evict(self, entry: Entry) -> SpillStart:
        """Let an unpinned entry go. `NO_ROOM` = it went at once."""
        start = SpillStart.NO_ROOM if entry.on_ssd else self._spills.start(entry, leaving=True)
        if start is SpillStart.NO_ROOM:
            self._inventory.leave_dram(entry)
        return start
