"""Allocator for extents of many sizes in one memory region.

The region is cut into slabs. A *span* is one slab or a short run of them, given to one size class: all its blocks have
one size (rounded up to 4 KiB). A large object is a span with one block.

    slab     0      1      2      3      4      5      6
          |aaaaaa|bb bb |      |c c c c c c c c |      |
           class a class b free   one large object  free

A span whose last block is freed becomes free slabs again, available to all size classes: memory moves between sizes.
Blocks that would waste much of one slab get spans of up to three slabs more, where neighbouring slabs are free.
"""

from collections import OrderedDict
from dataclasses import dataclass

from serving.errors import LedgerError
from serving.kvpool.core.free_runs import FreeRuns

QUANTUM = 4096
"""Default unit that sizes are rounded up to [bytes]: one memory page, one unit of direct I/O."""

_EXTRA_SLABS = 3
"""A span may be this much longer than one block needs."""
_TOLERATED_WASTE = 8
"""A span that wastes at most one part in this many is good enough."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Where the bytes of the region are. The five sizes add up to the region.

    Args:
        live_bytes: allocated, as requested.
        rounding_bytes: lost inside blocks in use, to rounding.
        idle_bytes: free blocks of spans in use, available to their own size class only.
        tail_bytes: ends of spans that no block fits in, and the end of the region.
        free_bytes: free slabs, available to all.
        largest_run_bytes: largest object that fits without an eviction.
    """

    live_bytes: int
    rounding_bytes: int
    idle_bytes: int
    tail_bytes: int
    free_bytes: int
    largest_run_bytes: int


class Span:
    """Neighbouring slabs that hold blocks of one size. Read it; only the allocator changes it."""

    __slots__ = ("block_bytes", "charge", "closed", "count", "first_slab", "fresh", "idle", "offset", "slabs", "used")

    def __init__(self, first_slab: int, slabs: int, slab_bytes: int, block_bytes: int) -> None:
        self.first_slab = first_slab
        self.slabs = slabs
        self.offset = first_slab * slab_bytes
        self.block_bytes = block_bytes
        self.count = slabs * slab_bytes // block_bytes
        self.charge = slabs * slab_bytes // self.count
        """Bytes charged per block, including its share of the span's waste, so that a full server is charged fully."""
        self.used = 0
        self.closed = False
        self.idle: list[int] = []
        """Blocks that were used and are not any more."""
        self.fresh = self.offset
        """Blocks from here on were never used."""

    def offsets(self) -> range:
        """Start of each of its blocks, used or not."""
        return range(self.offset, self.offset + self.count * self.block_bytes, self.block_bytes)

    def idle_offsets(self) -> set[int]:
        """Blocks that are not used."""
        return {*self.idle, *range(self.fresh, self.offset + self.count * self.block_bytes, self.block_bytes)}


class SlabAllocator:
    """Gives and takes extents; all operations are O(1) or O(log of few). It never evicts: its owner does."""

    __slots__ = (
        "_asked",
        "_block",
        "_full_for",
        "_live",
        "_newest",
        "_open",
        "_runs",
        "_shapes",
        "_span_of",
        "_spans",
        "capacity_bytes",
        "charged_bytes",
        "quantum",
        "region",
        "slab_bytes",
    )

    def __init__(self, capacity_bytes: int, slab_bytes: int, quantum: int = QUANTUM) -> None:
        """
        Args:
            capacity_bytes: of the region; what does not fill a slab at its end is not used.
            slab_bytes: rounded down to the quantum; a region smaller than that is one slab.
            quantum: sizes are rounded up to it [bytes].
        Raises: LedgerError if not even one page fits.
        """
        self.region = capacity_bytes
        self.quantum = quantum
        self.slab_bytes = min(slab_bytes, capacity_bytes) // quantum * quantum
        if self.slab_bytes < quantum:
            raise LedgerError(f"a region of {capacity_bytes} bytes with slabs of {slab_bytes} has no room for a page")
        self._runs = FreeRuns(capacity_bytes // self.slab_bytes)
        self.capacity_bytes = self._runs.slabs * self.slab_bytes
        self.charged_bytes = 0
        self._full_for = 0  # a block size for which there is no room, and nothing was freed since that was found
        self._live: dict[int, int] = {}  # offset -> bytes asked for
        self._span_of: list[Span | None] = [None] * self._runs.slabs
        self._spans: dict[int, Span] = {}
        self._open: dict[int, OrderedDict[int, Span]] = {}  # block size -> spans with idle blocks, by first slab
        self._newest: Span | None = None  # the last one of some size in `_open`; None = look there
        self._asked: int | None = None  # the newest request
        self._block = 0  # its size class
        self._shapes: dict[int, tuple[int, ...]] = {}

    @property
    def slabs(self) -> int:
        """Slabs of the region."""
        return self._runs.slabs

    @property
    def live(self) -> dict[int, int]:
        """Offset -> requested bytes of every extent in use. Read only, but see `reusable`."""
        return self._live

    def fits(self, nbytes: int) -> bool:
        """Whether an empty region has room for this."""
        return 0 < nbytes <= self.capacity_bytes

    def block_bytes(self, nbytes: int) -> int:
        """The size class of an object."""
        return -(-nbytes // self.quantum) * self.quantum

    def span_lengths(self, nbytes: int) -> tuple[int, ...]:
        """How many slabs a span for this object should have: best first, the shortest possible one last."""
        block = self.block_bytes(nbytes)
        shapes = self._shapes.get(block)
        if shapes is None:
            shapes = self._shapes[block] = self._shape(block)
        return shapes

    def allocate(self, nbytes: int) -> int | None:
        """Take an extent of at least `nbytes`.

        Returns: its offset, a multiple of the quantum; None if there is no room now.
        Raises: LedgerError for a size that never fits; callers check `fits` first.
        """
        if nbytes != self._asked:
            if not 0 < nbytes <= self.capacity_bytes:
                raise LedgerError(f"asked for {nbytes} bytes of {self.capacity_bytes}")
            self._asked, self._block = nbytes, -(-nbytes // self.quantum) * self.quantum
        block = self._block
        if block == self._full_for:
            return None
        span = self._newest
        if span is None or span.block_bytes != block:
            # The span that became usable last: the others get a chance to run empty.
            span = next(reversed(spans.values())) if (spans := self._open.get(block)) else self._new_span(block)
            if span is None:
                self._full_for = block
                return None
            self._newest = span
        if span.idle:
            offset = span.idle.pop()
        else:
            offset = span.fresh
            span.fresh = offset + block
        span.used = used = span.used + 1
        if used == span.count:
            self._shut(span)
        self._live[offset] = nbytes
        self.charged_bytes += span.charge
        return offset

    def reusable(self, offset: int, nbytes: int) -> bool:
        """Whether an object for which there is no room now would get exactly this extent, were it freed.

        Then its owner may pass it on: it only notes the new size in `live`.
        """
        span = self._span_of[offset // self.slab_bytes]
        if span is None or span.closed or span.block_bytes != -(-nbytes // self.quantum) * self.quantum:
            return False
        # There is no room, so that all spans of this size class are full; one that runs empty must not grow either.
        return span.used > 1 or self._runs.walled(span.first_slab, span.slabs)

    def free(self, offset: int) -> None:
        """Free an extent. Its span may become free slabs.

        Raises: LedgerError if it is not in use.
        """
        if self._live.pop(offset, None) is None:
            raise LedgerError(f"extent at {offset} freed while not in use")
        span = self.span_at(offset)
        self._full_for = 0
        self.charged_bytes -= span.charge
        span.used -= 1
        span.idle.append(offset)
        if span.used == 0:
            self._shut(span)
            del self._spans[span.first_slab]
            for slab in range(span.first_slab, span.first_slab + span.slabs):
                self._span_of[slab] = None
            self._runs.give(span.first_slab, span.slabs)
        elif not span.closed:
            self._newest = None
            self._open.setdefault(span.block_bytes, OrderedDict()).setdefault(span.first_slab, span)

    def span_at(self, offset: int) -> Span:
        """The span of an extent.

        Raises: LedgerError if there is none.
        """
        span = self._span_of[offset // self.slab_bytes]
        if span is None:
            raise LedgerError(f"no span at {offset}")
        return span

    def charge_at(self, offset: int) -> int:
        """Cost of the extent there to the region: its block with its share of the span's waste [bytes].

        Raises: LedgerError if there is no span.
        """
        return self.span_at(offset).charge

    def span_of_slab(self, slab: int) -> Span | None:
        """The span that has this slab; None = the slab is free."""
        return self._span_of[slab]

    def close(self, span: Span) -> None:
        """Stop allocating in this span, so that it can become empty."""
        span.closed = True
        self._shut(span)

    def reopen(self, span: Span) -> None:
        """End of `close`. Ignored if the span no longer exists."""
        self._full_for = 0
        if span.closed and self._spans.get(span.first_slab) is span:
            span.closed = False
            if span.used < span.count:
                self._newest = None
                self._open.setdefault(span.block_bytes, OrderedDict())[span.first_slab] = span

    def fragmentation(self) -> Fragmentation:
        """Where the bytes are now. O(spans and extents)."""
        live = sum(self._live.values())
        used = sum(span.used * span.block_bytes for span in self._spans.values())
        idle = sum((span.count - span.used) * span.block_bytes for span in self._spans.values())
        free = self._runs.free_slabs * self.slab_bytes
        return Fragmentation(
            live_bytes=live,
            rounding_bytes=used - live,
            idle_bytes=idle,
            tail_bytes=self.region - used - idle - free,
            free_bytes=free,
            largest_run_bytes=self._runs.longest * self.slab_bytes,
        )

    def check(self) -> None:
        """Prove that every slab is free or in one span, and that spans, extents and counts agree.

        Raises: LedgerError if not.
        """
        self._runs.check()
        owner: list[Span | None] = [None] * self._runs.slabs
        charged = 0
        live = 0
        for first, span in self._spans.items():
            if first != span.first_slab or not 0 < span.used <= span.count:
                raise LedgerError(f"span {first} is filed wrongly or holds {span.used} of {span.count}")
            for slab in range(first, first + span.slabs):
                if owner[slab] is not None:
                    raise LedgerError(f"slab {slab} is in two spans")
                owner[slab] = span
            charged += span.used * span.charge
            live += self._check_span(span)
        if owner != self._span_of or {i for i, span in enumerate(owner) if span is None} != self._runs.free_set():
            raise LedgerError("spans, their slabs and the free slabs disagree")
        if live != len(self._live) or charged != self.charged_bytes:
            raise LedgerError("extents in use and their spans disagree")
        for block, spans in self._open.items():
            if any(span.block_bytes != block or self._spans.get(first) is not span for first, span in spans.items()):
                raise LedgerError(
                    f"blocks of {block} bytes are allocated from a span of another size, or a released one"
                )

    def _check_span(self, span: Span) -> int:
        idle = span.idle_offsets()
        live = [offset for offset in span.offsets() if offset in self._live]
        if len(idle) + len(live) != span.count or any(offset in idle for offset in live) or len(live) != span.used:
            raise LedgerError(f"blocks of span {span.first_slab} are in two places or in none")
        if any(self._live[offset] > span.block_bytes for offset in live):
            raise LedgerError(f"an extent of span {span.first_slab} is larger than its block")
        listed = span.first_slab in self._open.get(span.block_bytes, ())
        if listed != (not span.closed and span.used < span.count):
            raise LedgerError(f"span {span.first_slab} with {len(idle)} idle blocks is listed wrongly")
        return len(live)

    def _shape(self, block: int) -> tuple[int, ...]:
        shortest = -(-block // self.slab_bytes)
        best, least = shortest, 1.0
        for slabs in range(shortest, min(shortest + _EXTRA_SLABS, self._runs.slabs) + 1):
            waste = (slabs * self.slab_bytes % block) / (slabs * self.slab_bytes)
            if waste < least:
                best, least = slabs, waste
            if waste * _TOLERATED_WASTE <= 1:
                break
        return tuple(range(best, shortest - 1, -1))

    def _new_span(self, block: int) -> Span | None:
        for slabs in self.span_lengths(block):
            first = self._runs.take(slabs)
            if first is not None:
                span = Span(first, slabs, self.slab_bytes, block)
                self._spans[first] = span
                for slab in range(first, first + slabs):
                    self._span_of[slab] = span
                self._open.setdefault(block, OrderedDict())[first] = span
                return span
        return None

    def _shut(self, span: Span) -> None:
        self._newest = None
        spans = self._open.get(span.block_bytes)
        if spans is not None and spans.pop(span.first_slab, None) is not None and not spans:
            del self._open[span.block_bytes]
