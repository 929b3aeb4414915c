"""The published events of one ledger: turns its changes into numbered batches, and repeats them on request.

    ledger ──changes──► publish ──► batch n ──► subscribers
                           │           └──► the last batches ──┐
                           └──► held: what is stored now ──────┴──► replay from n

The log holds what subscribers must believe is stored, so it sends no block twice and no removal of a block that was
never sent. A subscriber that missed batches requests them by number. If they are no longer kept, or never were because
there was no subscriber, it gets `AllBlocksCleared` and then all stored blocks, so every gap can be closed.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from serving.ids import BlockHash
from serving.kvevents.core.event_form import Event, EventForm
from serving.values.kv_changes import BlocksRemoved, BlocksStored, KvChange

BATCH_BLOCKS = 4096
"""Blocks in one batch, about 300 kB with 16 tokens each; a larger change is divided."""

Batch = tuple[int, bytes]
"""A batch's number, and its payload."""


class _Held(Struct, gc=False):
    """A stored block. `tokens` are packed, since there may be a million of them."""

    parent: BlockHash | None
    tokens: bytes
    scopes: tuple[object, ...]
    group: int | None


class KvEventLog:
    """The numbered events of one publisher.

    Args:
        most_batches: kept for replay.
        first: number of the first batch. Take one larger than any that an earlier process under the same address has
            used, so that a subscriber notices a gap, requests it, and gets the `AllBlocksCleared` of the start.
    """

    def __init__(self, form: EventForm, most_batches: int, first: int) -> None:
        self._form = form
        self._first = self.next_number = first
        """Number of the next batch."""
        self._kept: deque[Batch] = deque(maxlen=most_batches)
        self._held: dict[str, dict[BlockHash, _Held]] = {}

    @property
    def held(self) -> dict[str, list[BlockHash]]:
        """By medium, the blocks that subscribers believe to be stored."""
        return {medium: [*blocks] for medium, blocks in self._held.items() if blocks}

    def open(self, now: float) -> list[Batch]:
        """The first batch: it voids all that an earlier process published.

        Args:
            now: here and below, Unix time [s].
        """
        return [self._number([self._form.cleared()], now)]

    def publish(self, changes: Iterable[KvChange], now: float) -> list[Batch]:
        """Batches that report these changes; none if they do not concern subscribers."""
        batches: list[Batch] = []
        events: list[Event] = []
        blocks = 0
        for event, size in self._events(self._net(changes)):
            events.append(event)
            blocks += size
            if blocks >= BATCH_BLOCKS:
                batches.append(self._number(events, now))
                events, blocks = [], 0
        if events:
            batches.append(self._number(events, now))
        return batches

    def pass_over(self, changes: Iterable[KvChange]) -> None:
        """Apply changes while there is no subscriber. Effects: batches are not kept; a replay sends what is stored."""
        for _ in self._net(changes):
            pass
        if self._kept:
            self._kept.clear()
        self.next_number += 1

    def greet(self, now: float) -> list[Batch]:
        """An empty batch for new subscribers: its number shows them that they missed others."""
        return [self._number([], now)]

    def begin_again(self, now: float) -> list[Batch]:
        """`AllBlocksCleared`, because changes were lost. Effects: forgets what is stored."""
        self._held.clear()
        return [self._number([self._form.cleared()], now)]

    def replay(self, start: int, now: float) -> Iterator[Batch]:
        """Batches for a subscriber that needs number `start` and all after it; empty if there are none."""
        kept, last = self._kept, self.next_number - 1
        if start > last:
            return
        if kept and (start >= kept[0][0] or kept[0][0] == self._first):
            yield from [batch for batch in kept if batch[0] >= start]
            return
        # The last part has the number of the newest batch, so that the subscriber continues behind it.
        parts = self._everything(last - start + 1)
        for place, events in enumerate(parts):
            yield last - len(parts) + 1 + place, self._form.pack(events, now)

    def _number(self, events: Sequence[Event], now: float) -> Batch:
        batch = self.next_number, self._form.pack(events, now)
        self.next_number += 1
        self._kept.append(batch)
        return batch

    # ---- what is stored --------------------------------------------------------------------------------------------

    def _net(self, changes: Iterable[KvChange]) -> Iterator[KvChange]:
        """The changes as far as they are news to subscribers. Effects: updates what is held."""
        for change in changes:
            if isinstance(change, BlocksStored):
                yield from self._store(change)
            elif gone := self._remove(change):
                yield BlocksRemoved(change.medium, gone)

    def _store(self, change: BlocksStored) -> Iterator[BlocksStored]:
        """The runs of blocks that were not held before."""
        held, hashes, scopes = self._held.setdefault(change.medium, {}), change.hashes, (change.scope,)
        packed, size = array("I", change.tokens), len(change.tokens) // len(hashes)
        parent, begin = change.parent, 0
        for place, block in enumerate(hashes):
            known = held.get(block)
            if known is None:
                tokens = packed[place * size : (place + 1) * size].tobytes()
                held[block] = _Held(parent, tokens, scopes, change.group)
                if place + 1 - begin == BATCH_BLOCKS:
                    yield _part(change, begin, place + 1, size)
                    begin = place + 1
            else:
                if change.scope not in known.scopes:
                    known.scopes += scopes
                if begin < place:
                    yield _part(change, begin, place, size)
                begin = place + 1
            parent = block if size else None
        if begin < len(hashes):
            yield _part(change, begin, len(hashes), size)

    def _remove(self, change: BlocksRemoved) -> list[BlockHash]:
        """The blocks that are held under no scope any more."""
        held, gone = self._held.get(change.medium, {}), []
        for block in change.hashes:
            known = held.get(block)
            if known is None or change.scope not in known.scopes:
                continue
            known.scopes = tuple([scope for scope in known.scopes if scope != change.scope])
            if not known.scopes:
                del held[block]
                gone.append(block)
        return gone

    def _everything(self, most: int) -> list[list[Event]]:
        """Events that describe all held blocks, in at most so many batches."""
        parts: list[list[Event]] = []
        events, blocks = [self._form.cleared()], 0
        total = sum(map(len, self._held.values()))
        size = max(BATCH_BLOCKS, -(-total // most))
        for event, count in self._events(run for medium in self._held for run in self._chains(medium)):
            if blocks and blocks + count > size and len(parts) + 1 < most:
                parts.append(events)
                events, blocks = [], 0
            events.append(event)
            blocks += count
        return [*parts, events]

    def _chains(self, medium: str) -> Iterator[BlocksStored]:
        """All blocks held in a medium, each after the one before it in its chain."""
        held, done = self._held[medium], set[BlockHash]()
        for block in held:
            chain: list[BlockHash] = []
            at: BlockHash | None = block
            while at is not None and at in held and at not in done:
                done.add(at)
                chain.append(at)
                at = held[at].parent
            chain.reverse()
            for first in range(0, len(chain), BATCH_BLOCKS):
                part = chain[first : first + BATCH_BLOCKS]
                tokens, head = array("I"), held[part[0]]
                for one in part:
                    tokens.frombytes(held[one].tokens)
                yield BlocksStored(medium, part, head.parent, tokens.tolist(), group=head.group)

    def _events(self, changes: Iterable[KvChange]) -> Iterator[tuple[Event, int]]:
        """The events that report these changes, each with its number of blocks."""
        first: KvChange | None = None
        blocks: list[BlockHash] = []
        for change in changes:
            if first is not None and len(blocks) < BATCH_BLOCKS and _alike(first, change):
                blocks += change.hashes
                continue
            if first is not None:
                yield self._event(first, blocks), len(blocks)
            first, blocks = change, [*change.hashes]
        if first is not None:
            yield self._event(first, blocks), len(blocks)

    def _event(self, first: KvChange, blocks: Sequence[BlockHash]) -> Event:
        if isinstance(first, BlocksStored):
            return self._form.stored(first.medium, blocks, first.parent, [*first.tokens], first.group)
        return self._form.removed(first.medium, blocks)


def _part(change: BlocksStored, first: int, end: int, size: int) -> BlocksStored:
    """Blocks `first ... end - 1` of a change; `size` = known tokens of a block."""
    if end - first == len(change.hashes):
        return change
    parent = change.parent if not first else change.hashes[first - 1] if size else None
    tokens = change.tokens[first * size : end * size]
    return BlocksStored(change.medium, change.hashes[first:end], parent, tokens, change.scope, change.group)


def _alike(first: KvChange, change: KvChange) -> bool:
    """Whether one event can report both: removals, or blocks of which only the hashes are known."""
    if first.medium != change.medium:
        return False
    if isinstance(first, BlocksStored):
        return isinstance(change, BlocksStored) and not change.tokens and not first.tokens
    return isinstance(change, BlocksRemoved)
