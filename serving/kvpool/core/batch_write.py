"""Writing entries into the pool: reserve on all servers, copy, commit on all servers.

An entry that cannot be written is dropped with a one-word reason; it is never sent to a server that does not own it.
Reasons are those of `GrantStatus` and `MissReason`, `no server`, and `expired` (the reservation had expired).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from serving.ids import BlockHash
from serving.kvpool.core.entry import Grant, GrantStatus, Kind, Space
from serving.kvpool.core.messages import Abort, Commit, Committed, Reserve, Reserved
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
    PoolWrite,
    PoolWritten,
    undo,
)
from serving.values.pool_outcome import MissReason, StoreReport

RESERVE_SHARE = 0.5
"""Part of the time that reserving may take: one silent server must not use up all of it."""


def reserve_deadline(now: float, until: float) -> float:
    """When a batch that starts now has its room reserved at the latest.

    Args:
        until: deadline of the whole batch.
    """
    return now + (until - now) * RESERVE_SHARE


STORED = "stored"
PRESENT = GrantStatus.PRESENT.value
NO_SERVER = "no server"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Entry to write.

    Args:
        owner: the server to write it to; None = there is none.
        expected: required checksum; an entry with other bytes is not stored (reason `checksum`).
    """

    hash: BlockHash
    nbytes: int
    owner: str | None
    expected: int | None = None


def store_report(entries: Sequence[NewEntry], outcomes: Sequence[str]) -> StoreReport:
    """Outcomes of a batch, in the order of its entries, as numbers."""
    counts = Counter(outcomes)
    nbytes = sum([entry.nbytes for entry, what in zip(entries, outcomes, strict=True) if what == STORED])
    stored, present = counts.pop(STORED, 0), counts.pop(PRESENT, 0)
    return StoreReport(stored, present, tuple(sorted(counts.items())), nbytes)


class BatchWrite:
    """One batch. `result`, one word for each entry, is set when all servers have responded or failed.

    Args:
        until: deadline of the batch; commits may take `LAST_WORD_S` longer, because without its commit a write is lost.
    """

    def __init__(self, space: Space, kind: Kind, entries: Sequence[NewEntry], until: float) -> None:
        self.result: list[str] | None = None
        self._space = space
        self._kind = kind
        self._entries = entries
        self._until = until
        self._outcomes = [NO_SERVER] * len(entries)
        self._reserving: dict[str, list[int]] = defaultdict(list)
        self._granted: dict[str, list[tuple[int, Grant]]] = {}
        self._copying: dict[str, list[tuple[int, Grant]]] = {}
        self._ready: dict[str, list[tuple[int, int, int]]] = {}
        self._committing: dict[str, list[int]] = {}
        self._failed: set[str] = set()

    def start(self, now: float) -> Sequence[PoolEffect]:
        """Reserve room at every owner."""
        entries = self._entries
        for index, entry in enumerate(entries):
            if entry.owner is not None:
                self._reserving[entry.owner].append(index)
        if not self._reserving:
            return self._commit(now)
        until = reserve_deadline(now, self._until)
        effects: list[PoolEffect] = []
        for server, indices in self._reserving.items():
            items = tuple([(entries[index].hash, entries[index].nbytes) for index in indices])
            effects.append(PoolAsk(server, Reserve(self._space, self._kind, items), until))
        return effects

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Takes an answer, a failure, or the end of copying.

        Returns: what comes next.
        """
        if isinstance(event, PoolReadDone):
            return []  # nothing is read
        server = event.server
        if isinstance(event, PoolWritten):
            return self._written(server, event.digests, now)
        if server in self._reserving:
            return self._reserved(server, event, now)
        if server in self._committing:
            return self._committed(server, event)
        if isinstance(event, PoolFailure):  # what was given back did not arrive: the rest ends with it
            self._give_up(server, [index for index, _, _ in self._ready.pop(server, ())], event.reason)
        return undo(event, self._until + LAST_WORD_S, self._failed)

    def _reserved(self, server: str, event: PoolAnswer | PoolFailure, now: float) -> Sequence[PoolEffect]:
        indices = self._reserving.pop(server)
        effects: list[PoolEffect] = []
        if isinstance(event, PoolFailure):
            self._give_up(server, indices, event.reason)
        elif isinstance(event.message, Reserved) and len(event.message.grants) == len(indices):
            for index, grant in zip(indices, event.message.grants, strict=True):
                self._outcomes[index] = grant.status.value
                if grant.status is GrantStatus.GRANTED:
                    self._granted.setdefault(server, []).append((index, grant))
        else:
            self._give_up(server, indices, MissReason.ERROR)
            effects.append(PoolClose(server))
        if not self._reserving:
            self._copying, self._granted = self._granted, {}
            effects += [PoolWrite(server, grants, self._until) for server, grants in self._copying.items()]
            if not self._copying:
                effects += self._commit(now)
        return effects

    def _written(self, server: str, digests: Sequence[int | str], now: float) -> Sequence[PoolEffect]:
        """Notes what can be committed, and gives back room that was not used."""
        grants = self._copying.pop(server, None)
        if grants is None:
            return []  # told twice
        unused: list[int] = []
        ready: list[tuple[int, int, int]] = []
        for (index, grant), digest in zip(grants, digests, strict=True):
            expected = self._entries[index].expected
            if isinstance(digest, str):
                self._outcomes[index] = digest
                unused.append(grant.version)
            elif expected is not None and digest != expected:
                self._outcomes[index] = MissReason.CHECKSUM.value
                unused.append(grant.version)
            else:
                ready.append((index, grant.version, digest))
        if ready:
            self._ready[server] = ready
        until = max(self._until, now + LAST_WORD_S)
        effects: list[PoolEffect] = [PoolPost(server, Abort(tuple(unused)), until)] if unused else []
        if not self._copying:
            effects += self._commit(now)
        return effects

    def _commit(self, now: float) -> Sequence[PoolEffect]:
        effects: list[PoolEffect] = []
        until = max(self._until, now + LAST_WORD_S)
        for server, ready in self._ready.items():
            ready.reverse()  # last block first: the beginning of a chain is then younger, and stays longer than its end
            self._committing[server] = [index for index, _, _ in ready]
            items = tuple([(version, digest) for _, version, digest in ready])
            effects.append(PoolAsk(server, Commit(items), until))
        self._ready = {}
        self._conclude()
        return effects

    def _committed(self, server: str, event: PoolAnswer | PoolFailure) -> Sequence[PoolEffect]:
        indices = self._committing.pop(server)
        effects: list[PoolEffect] = []
        ok = event.message.ok if isinstance(event, PoolAnswer) and isinstance(event.message, Committed) else ()
        if len(ok) == len(indices):
            for index, good in zip(indices, ok, strict=True):
                self._outcomes[index] = STORED if good else EXPIRED
        else:
            self._give_up(server, indices, event.reason if isinstance(event, PoolFailure) else MissReason.ERROR)
            effects.append(PoolClose(server))
        self._conclude()
        return effects

    def _give_up(self, server: str, indices: Sequence[int], reason: MissReason) -> None:
        self._failed.add(server)
        for index in indices:
            self._outcomes[index] = reason.value

    def _conclude(self) -> None:
        if not self._committing:
            self.result = self._outcomes
