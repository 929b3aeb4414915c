"""Moves entries to the server that owns them, in virtual time: after a server joined, and when one leaves.

Rounds, batches, targets and moves are those of a live memory server's own migration (`kvpool/core/migration_plan`,
`kvpool/core/batch_move`). Ledgers respond at once; only entries on SSD take time, until the disk has loaded them.
There are no idle rounds, because no client with an old view can have written to the wrong server.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from serving.kvpool.core.batch_move import BatchMove
from serving.kvpool.core.entry import EntryView
from serving.kvpool.core.ledger_answers import found_in_dram, ledger_answer
from serving.kvpool.core.messages import Promote, Promoted
from serving.kvpool.core.migration_plan import (
    MoveTargets,
    batch_end,
    next_batch,
    next_round,
    planned_batches,
    round_end,
)
from serving.kvpool.core.operation import (
    PoolAnswer,
    PoolAsk,
    PoolEffect,
    PoolEvent,
    PoolFailure,
    PoolPost,
    PoolWrite,
    PoolWritten,
)
from serving.kvpool.core.ring import HashRing
from serving.values.pool_outcome import MissReason
from serving.virtual.memory_server import VirtualServer

Work = Callable[[VirtualServer, float], None]
"""Carries out a ledger's orders."""


class Migration:
    """One server's migration.

    Args:
        up: servers that respond, by name; changes over time.
    Attributes:
        due: when to call `step`; None = every entry is in its place.
        left: entries that should be on other servers, counted at the start of the round and updated since.
        moved, moved_bytes: totals.
    """

    def __init__(self, server: VirtualServer, up: Mapping[str, VirtualServer], work: Work, bytes_per_s: float) -> None:
        self.server = server
        self.due: float | None = None
        self.left = 0
        self.moved = 0
        self.moved_bytes = 0
        self._up = up
        self._work = work
        self._bytes_per_s = bytes_per_s
        self._client = -server.incarnation
        """Books leases and reservations of this migration at every server."""
        self._batches: Iterator[list[EntryView]] | None = None
        self._round_ends = 0.0
        self._targets: MoveTargets | None = None
        self._move: BatchMove[EntryView] | None = None
        self._move_started = 0.0
        self._loading: Promote | None = None
        self._loaded_by = 0.0

    def settle(self, ring: HashRing, now: float) -> None:
        """Adopt another ring: start a round that moves what it gives to other servers.

        A batch that waits for the disk is finished first.
        """
        self._targets = MoveTargets(ring, self.server.name)
        if self._move is None:
            self._plan_round(self._targets, now)
        else:
            self._batches = None

    def step(self, now: float) -> None:
        """Move one batch; when the round is over, decide when the next one starts."""
        assert self._targets is not None, "a step without a ring"
        if self._loading is not None:
            self._wait_for_disk(self._loading, now)
            return
        if self._batches is None:
            self._plan_round(self._targets, now)
            if self.due is None:
                return
        batch = next(self._batches, None) if self._batches is not None and now < self._round_ends else None
        if batch is None:
            self._batches = None
            self.due = next_round(self.left, now, self.server.leave_by)
            return
        self._move = BatchMove(self.server.name, batch, self._owner, batch_end(now, self._round_ends))
        self._move_started = now
        self._drive(self._move, self._move.start(now), now)

    def resume(self, ring: HashRing, now: float) -> None:
        """Continue after the server's process was frozen."""
        self.settle(ring, now)
        if self._loading is not None:
            self.due = now

    @property
    def leased(self) -> set[int]:
        """Versions that the batch under way leases at home."""
        return set() if self._move is None else self._move.leased

    def _plan_round(self, targets: MoveTargets, now: float) -> None:
        strays = targets.strays(self.server.manager.entries())
        self.left = len(strays)
        self._round_ends = round_end(now, self.server.leave_by)
        capacity_bytes = self.server.manager.settings.capacity_bytes
        self._batches = planned_batches(strays, lambda one: -one.last_use, capacity_bytes)
        self.due = now if strays else None

    def _owner(self, entry: EntryView) -> str | None:
        assert self._targets is not None
        return self._targets.target(entry)

    def _drive(self, move: BatchMove[EntryView], effects: Sequence[PoolEffect], now: float) -> None:
        """Carry out effects until the move is complete or waits for the disk."""
        queue = deque(effects)
        asked: dict[str, VirtualServer] = {}
        while queue:
            effect = queue.popleft()
            if isinstance(effect, PoolAsk) and isinstance(effect.message, Promote):
                self._loading, self._loaded_by = effect.message, now + effect.message.wait_s
                self.server.manager.promote(effect.message.versions, self._client, now)
                self._work(self.server, now)
                self._wait_for_disk(effect.message, now)
                return
            event = self._carried_out(move, effect, asked, now)
            if event is not None:
                queue.extend(move.on(event, now))
        for server in asked.values():
            self._work(server, now)
        result = move.result
        assert result is not None, "a move without an end"
        self._move = None
        self.left -= len(result.moved) + result.absent
        self.moved += len(result.moved)
        self.moved_bytes += result.copied_bytes
        self.due = next_batch(self._move_started, now, result.copied_bytes, self._bytes_per_s, self._round_ends)

    def _carried_out(
        self, move: BatchMove[EntryView], effect: PoolEffect, asked: dict[str, VirtualServer], now: float
    ) -> PoolEvent | None:
        if isinstance(effect, PoolAsk | PoolPost):
            name = effect.server
            server = self._up.get(name)
            if server is None:
                return PoolFailure(name, MissReason.UNREACHABLE)
            asked[name] = server
            answer = ledger_answer(server.manager, effect.message, self._client, now)
            return PoolAnswer(name, answer) if isinstance(effect, PoolAsk) else None
        if isinstance(effect, PoolWrite):
            return PoolWritten(effect.server, [move.ready[index][1].checksum for index, _ in effect.grants])
        return None  # a connection that ends

    def _wait_for_disk(self, order: Promote, now: float) -> None:
        manager, move = self.server.manager, self._move
        assert move is not None
        if now < self._loaded_by and any(map(manager.pending, order.versions)):
            times = (self.server.disk_due, self.server.tick_at, self._loaded_by)
            self.due = max(now, min(time for time in times if time is not None))
            return
        self._loading = None
        found = tuple([found_in_dram(manager, version) for version in order.versions])
        self._drive(move, move.on(PoolAnswer(self.server.name, Promoted(found)), now), now)
