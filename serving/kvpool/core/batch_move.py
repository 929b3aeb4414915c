"""Moves a batch of entries from one memory server to the servers that own them, as an ordinary client of both.

    look up at home ─► load those on SSD ─► write to the owners ─► confirm those already present
                                       drop at home ◄─ pass on their claims ◄─┘

The home server keeps its copy until the owner certainly has one: "present" may mean that a write has only started.
Readers find the entry at any time, since they query both servers. An entry stays at home if its owner is lost or full,
its bytes are wrong, a reader leases it, or it was replaced since it was listed.

The live migrator drives it over connections, virtual time over ledgers in the same process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from serving.kvpool.core.batch_write import PRESENT, STORED, BatchWrite, NewEntry
from serving.kvpool.core.entry import EntryTier, Found
from serving.kvpool.core.messages import (
    AskClaims,
    Claim,
    ClaimsTold,
    Committed,
    Drop,
    Looked,
    Lookup,
    Message,
    Promote,
    Promoted,
    ReleaseLeases,
    Report,
)
from serving.kvpool.core.migration_plan import MovingEntry
from serving.kvpool.core.operation import (
    LAST_WORD_S,
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolFailure,
    PoolPost,
    PoolReadDone,
    PoolWritten,
    undo,
)
from serving.values.kv_hints import BlockClaim, only
from serving.values.pool_outcome import MissReason

LEASE_S = 30.0
"""Longer than any batch may take."""
_SSD_WAIT_S = 5.0

_E = TypeVar("_E", bound=MovingEntry)


@dataclass(frozen=True, slots=True)
class MovedBatch(Generic[_E]):
    """Result of a move.

    Attributes:
        moved: entries that their owners have and the home server no longer has.
        absent: entries of the batch that the home server had lost before, for example by eviction.
        copied_bytes: written to owners, whether or not the home server could drop its copy.
    """

    moved: Sequence[_E] = ()
    absent: int = 0
    copied_bytes: int = 0


class BatchMove(Generic[_E]):
    """One batch. `result` is set when all servers have responded or failed.

    Args:
        home: name of the server that has the entries.
        batch: entries of one space and kind.
        owner: returns the server that an entry should move to; None = it cannot move now.
        until: deadline of the whole move.
    """

    def __init__(self, home: str, batch: Sequence[_E], owner: Callable[[_E], str | None], until: float) -> None:
        self.result: MovedBatch[_E] | None = None
        self.ready: list[tuple[_E, Found]] = []
        """Leased entries in the home server's memory, in the order in which they are written."""
        self._home = home
        self._batch = batch
        self._owner = owner
        self._until = until
        self._space = batch[0].space
        self._found: dict[int, Found] = {}
        self._write: BatchWrite | None = None
        self._outcomes: list[str] = []
        self._confirming: dict[str, list[int]] = {}
        self._safe: list[_E] = []
        self._absent = 0
        self._await: type[Message] | None = Looked
        """Type of the response due from the home server; None while other servers work."""
        self._failed: set[str] = set()

    @property
    def leased(self) -> set[int]:
        """Versions that the move leases at the home server."""
        return set(self._found) if self.result is None else set()

    def start(self, now: float) -> Sequence[PoolEffect]:
        """Lease the entries at the home server."""
        del now
        hashes = tuple([entry.hash for entry in self._batch])
        return [PoolAsk(self._home, Lookup(self._space, hashes, LEASE_S), self._until)]

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Takes an answer, a failure, or the end of copying.

        Returns: what comes next.
        """
        if isinstance(event, PoolReadDone):
            return []  # nothing is read
        if self._await is not None and event.server == self._home and not isinstance(event, PoolWritten):
            return self._home_answered(event, now)
        if self._write is not None and self._write.result is None:
            effects = [*self._write.on(event, now)]
            return [*effects, *self._written(now)]
        if event.server in self._confirming and not isinstance(event, PoolWritten):
            return self._confirmed(event, now)
        if self._write is not None and not (isinstance(event, PoolAnswer) and isinstance(event.message, Looked)):
            return self._write.on(event, now)  # too late for it: it gives back what was reserved
        return undo(event, self._until + LAST_WORD_S, self._failed)

    def _home_answered(self, event: PoolAnswer | PoolFailure, now: float) -> Sequence[PoolEffect]:
        message = event.message if isinstance(event, PoolAnswer) else None
        short = isinstance(message, Looked) and len(message.found) != len(self._batch)
        if self._await is None or not isinstance(message, self._await) or short:
            self._failed.add(self._home)
            self._await, self.result = None, MovedBatch()
            return [PoolClose(self._home)]
        if isinstance(message, Looked):
            self._found = {one.version: one for one in message.found if one is not None}
            self._absent = message.found.count(None)
            on_ssd = tuple([version for version, one in self._found.items() if one.tier is EntryTier.SSD])
            if on_ssd:
                self._await = Promoted
                wait_s = max(0.0, min(_SSD_WAIT_S, (self._until - now) / 2))
                return [PoolAsk(self._home, Promote(on_ssd, wait_s), self._until)]
        elif isinstance(message, Promoted):
            loaded = {one.version: one for one in message.found if one is not None}
            self._found = {v: loaded.get(v, one) for v, one in self._found.items()}
        elif isinstance(message, ClaimsTold):
            return self._claim(message.claims, max(self._until, now + LAST_WORD_S))
        elif isinstance(message, Committed):
            self._await = None
            self._conclude([entry for entry, good in zip(self._safe, message.ok, strict=False) if good])
            return []
        self._await = None
        return self._write_all(now)

    def _write_all(self, now: float) -> Sequence[PoolEffect]:
        found = self._found
        self.ready = [
            (entry, found[entry.version])
            for entry in self._batch
            if entry.version in found and found[entry.version].tier is EntryTier.DRAM
        ]
        entries = [NewEntry(one.hash, at.nbytes, self._owner(one), at.checksum) for one, at in self.ready]
        self._write = BatchWrite(self._space, self._batch[0].kind, entries, self._until)
        effects = [*self._write.start(now)]
        return [*effects, *self._written(now)]

    def _written(self, now: float) -> Sequence[PoolEffect]:
        """Once the write is complete, confirm with owners the entries that they reported present."""
        if self._write is None or self._write.result is None:
            return []
        self._outcomes = self._write.result
        for index, ((entry, _), what) in enumerate(zip(self.ready, self._outcomes, strict=True)):
            owner = self._owner(entry)
            if what == PRESENT and owner is not None:
                self._confirming.setdefault(owner, []).append(index)
        if not self._confirming:
            return self._drop(now)
        effects: list[PoolEffect] = []
        for owner, indices in self._confirming.items():
            hashes = tuple([self.ready[index][0].hash for index in indices])
            effects.append(PoolAsk(owner, Lookup(self._space, hashes, LEASE_S), self._until))
        return effects

    def _confirmed(self, event: PoolAnswer | PoolFailure, now: float) -> Sequence[PoolEffect]:
        indices = self._confirming.pop(event.server)
        effects: list[PoolEffect] = []
        found: Sequence[Found | None] = ()
        if isinstance(event, PoolAnswer) and isinstance(event.message, Looked):
            found = event.message.found
            there = tuple([one.version for one in found if one is not None])
            if there:
                effects.append(PoolPost(event.server, ReleaseLeases(there), self._until))
        if len(found) != len(indices):
            self._failed.add(event.server)
            effects = [PoolClose(event.server)]
            found = [None] * len(indices)
        for index, one in zip(indices, found, strict=True):
            if one is None:
                self._outcomes[index] = "not yet written"
        if not self._confirming:
            effects += self._drop(now)
        return effects

    def _drop(self, now: float) -> list[PoolEffect]:
        """Reports wrong bytes, ends all leases, and drops what its owner has."""
        until = max(self._until, now + LAST_WORD_S)
        pairs = [(entry, what) for (entry, _), what in zip(self.ready, self._outcomes, strict=True)]
        wrong = tuple([entry.version for entry, what in pairs if what == MissReason.CHECKSUM.value])
        self._safe = [entry for entry, what in pairs if what in (STORED, PRESENT)]
        effects: list[PoolEffect] = [PoolPost(self._home, Report(wrong), until)] if wrong else []
        if self._found:
            effects.append(PoolPost(self._home, ReleaseLeases(tuple(self._found)), until))
        if self._safe:
            self._await = ClaimsTold
            effects.append(PoolAsk(self._home, AskClaims(self._safe_versions()), until))
        else:
            self._conclude(())
        return effects

    def _claim(self, claims: Sequence[BlockClaim], until: float) -> list[PoolEffect]:
        """Pass the claims on to the new owners, then drop the entries."""
        owners = {entry.hash: self._owner(entry) for entry in self._safe}
        effects: list[PoolEffect] = []
        for owner in dict.fromkeys(owners.values()) if claims else ():
            theirs = {hash for hash, name in owners.items() if name == owner}
            if owner is not None:
                effects.append(PoolPost(owner, Claim(self._space, tuple([only(one, theirs) for one in claims])), until))
        self._await = Committed
        return [*effects, PoolAsk(self._home, Drop(self._safe_versions()), until)]

    def _safe_versions(self) -> tuple[int, ...]:
        return tuple([entry.version for entry in self._safe])

    def _conclude(self, moved: Sequence[_E]) -> None:
        pairs = zip(self.ready, self._outcomes, strict=True)
        copied_bytes = sum([at.nbytes for (_, at), what in pairs if what == STORED])
        self.result = MovedBatch(moved, self._absent, copied_bytes)
