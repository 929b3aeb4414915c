"""Driver of one engine in virtual time: executes commands, forwards events, starts transfers in the background."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

from serving.errors import HandoffError, LedgerError
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.events import (
    Drain,
    EngineEffect,
    EngineEvent,
    FetchDone,
    FetchOrder,
    HandoffClosed,
    HandoffReady,
    MoveOut,
    NextStep,
    PullDone,
    PullOrder,
    PullsNow,
    Run,
    StoreDone,
    StoreOrder,
    WakeAt,
    failure,
)
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens, ends
from serving.values.orders import Add, Adopt, Cancel, Order
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import BlockExtent, HandoffTicket
from serving.virtual.event_queue import EventQueue
from serving.virtual.ports import Movers, Owner, StepDurations

_NO_HASH = BlockHash(b"")
_NO_NODE = NodeId("")
_LAYOUT = "simulated"


class AccountedExtents(Sequence[BlockExtent]):
    """Extents of one ticket, created on access, because accounted blocks have neither an address nor data.

    Args:
        hashes: of the leading full blocks.
        blocks: of the block table.
        block_bytes: of one block.
    """

    __slots__ = ("_block_bytes", "_blocks", "_hashes")

    def __init__(self, hashes: tuple[BlockHash, ...], blocks: int, block_bytes: int) -> None:
        self._hashes = hashes
        self._blocks = blocks
        self._block_bytes = block_bytes

    def __len__(self) -> int:
        return self._blocks

    @overload
    def __getitem__(self, index: int) -> BlockExtent: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[BlockExtent, ...]: ...

    def __getitem__(self, index: int | slice) -> BlockExtent | tuple[BlockExtent, ...]:
        if isinstance(index, slice):
            return tuple([self._at(place) for place in range(*index.indices(self._blocks))])
        return self._at(range(self._blocks)[index])

    def _at(self, place: int) -> BlockExtent:
        known = self._hashes[place] if place < len(self._hashes) else _NO_HASH
        return BlockExtent(0, 0, self._block_bytes, known)


@dataclass(frozen=True, slots=True)
class DriverContext:
    """Shared context of the instances of one supernode.

    Attributes:
        owner_of: returns the gateway of a sequence.
        movers: KV transfers.
        block_bytes: size of one KV block, for handoff tickets.
    """

    queue: EventQueue
    times: StepDurations
    owner_of: Callable[[SequenceId], Owner]
    movers: Movers
    block_bytes: int


class InstanceDriver:
    """Connects one engine to gateways, transfers and the event queue.

    Args:
        name: of the instance.
        die: index of the engine in the instance.
        kick: called when the engine may have new work.
    """

    __slots__ = (
        "_block_bytes",
        "_kick",
        "_movers",
        "_on",
        "_owner_of",
        "_queue",
        "dead",
        "die",
        "engine",
        "name",
        "on_end",
    )

    def __init__(
        self,
        engine: InstanceEngine,
        name: ReplicaId,
        die: int,
        around: DriverContext,
        kick: Callable[["InstanceDriver"], None],
        on_end: Callable[[SequenceId], None] | None = None,
    ) -> None:
        self.engine = engine
        self._on = engine.on
        self.name = name
        self.die = die
        self.on_end = on_end
        """Called with each sequence that has left the engine."""
        self._queue = around.queue
        self._owner_of = around.owner_of
        self._movers = around.movers
        self._block_bytes = around.block_bytes
        self._kick = kick
        self.dead = False
        """The instance was lost: results of transfers that still arrive are ignored."""

    def tell(self, event: EngineEvent) -> Run | WakeAt | None:
        """Pass an event to the engine, start the transfers that it requests, and report its events to the gateways.

        Returns: the step to run, or when to call the engine again; None if neither.
        """
        effects = self._on(event, self._queue.now)
        return self._carry_out(effects) if effects else None

    def _carry_out(self, effects: list[EngineEffect]) -> Run | WakeAt | None:
        answer: Run | WakeAt | None = None
        told: list[News] = []
        on_end = self.on_end
        for effect in effects:
            if type(effect) is Run or type(effect) is WakeAt:  # the frequent ones first: a pattern that fails is slow
                answer = effect
            elif type(effect) is Tokens:
                if on_end is not None and effect.finish_reason is not None:
                    on_end(effect.sequence_id)
                told.append(effect)
            elif type(effect) is StoreOrder:
                self._movers.store(effect, self.name, self._stored)
            elif type(effect) is FetchOrder:
                self._movers.fetch(effect, self.name, self._fetched)
            elif type(effect) is HandoffReady:
                told.append(Prefilled(effect.first, self._ticket(effect)))
            elif type(effect) is PullOrder:
                self._pull(effect)
            elif type(effect) is HandoffClosed:
                if on_end is not None:
                    on_end(effect.sequence_id)
            else:
                self._pass_on(effect, told)
        if told:
            self._tell(told)
        return answer

    def _pass_on(self, effect: EngineEffect, told: list[News]) -> None:
        match effect:
            case Adopted() | Lost() | Leaving() | Refused():
                if isinstance(effect, Refused) and effect.kind is FailKind.ENGINE:
                    raise LedgerError(effect.reason)
                if self.on_end is not None and ends(effect):
                    self.on_end(effect.sequence_id)
                told.append(effect)

    def take(self, order: Order) -> None:
        """Execute a command of a gateway, and call `kick` unless the command was refused or only starts pulls."""
        on, now = self._on, self._queue.now
        effects = on(order, now)
        if effects:
            self._carry_out(effects)
            if type(order) is Add or type(order) is Adopt:
                return  # refused: nothing else comes of these at once
        if type(order) is Adopt:
            pulls = on(PullsNow(), now)
            self._carry_out(pulls)
            if all([type(one) is PullOrder for one in pulls]):
                return
        if type(order) is Cancel and self.on_end is not None:
            self.on_end(order.sequence_id)
        self._kick(self)

    def drain(self) -> None:
        """Accept no new sequences."""
        self.tell(Drain())

    def move_out(self) -> None:
        """Accept no new sequences, and hold the present ones for other instances from the next step on."""
        self.tell(MoveOut())
        self._kick(self)

    def at_rest(self) -> bool:
        """Whether the engine has neither sequences nor stores in progress. Starts the stores that are still due."""
        if not self.engine.idle():
            return False
        self.tell(NextStep())
        return not self.engine.storing_blocks

    def lose(self, sequence_id: SequenceId) -> int:
        """Cancel a sequence whose KV was lost, and report the loss so that its gateway resubmits it.

        Returns: tokens that must be recomputed.
        """
        sequence = self.engine.sequences.get(sequence_id)
        tokens = sequence.num_computed if sequence is not None else 0
        self.take(Cancel(sequence_id))
        self._tell([Lost(sequence_id, "the memory that held it was lost")])
        return tokens

    def _tell(self, told: list[News]) -> None:
        """Send each owner its events in one call."""
        owner_of = self._owner_of
        first = owner_of(told[0].sequence_id)
        if len(told) == 1:
            first.hear(self.name, (told[0],))
            return
        owners = [owner_of(one.sequence_id) for one in told]
        while owners:
            first = owners[0]
            first.hear(self.name, tuple([one for one, owner in zip(told, owners, strict=True) if owner is first]))
            told = [one for one, owner in zip(told, owners, strict=True) if owner is not first]
            owners = [owner for owner in owners if owner is not first]

    def _ticket(self, event: HandoffReady) -> HandoffTicket:
        extents = AccountedExtents(event.hashes, len(event.blocks), self._block_bytes)
        return HandoffTicket(
            event.ticket_id,
            self.name,
            _NO_NODE,
            "",
            _LAYOUT,
            event.computed_tokens,
            extents,
            generation=self.die,
        )

    def _pull(self, order: PullOrder) -> None:
        here = order.first_block * self.engine.settings.block_tokens
        self._movers.pull(order, self.name, self.die, order.ticket.computed_tokens - here, self._pulled)

    def _pulled(self, outcome: tuple[PullOrder, int, HandoffError | None]) -> None:
        if self.dead:
            return
        order, moved, error = outcome
        self.tell(PullDone(order.sequence_id, moved, failure(error) if error is not None else None))
        self._kick(self)

    def _fetched(self, outcome: tuple[FetchOrder, FetchReport]) -> None:
        if self.dead:
            return
        order, report = outcome
        self.tell(FetchDone(order.sequence_id, report))
        self._kick(self)

    def _stored(self, order: StoreOrder) -> None:
        if self.dead:
            return
        self.tell(StoreDone(order.order_id))
        if self.engine.scheduler.waiting.items:  # perhaps for the blocks that were pinned
            self._kick(self)


class WakeTimer:
    """Timer that keeps only the earliest requested wake-up, so that later ones do not fill the event queue."""

    __slots__ = ("_at", "_queue", "_wake")

    def __init__(self, queue: EventQueue, wake: Callable[[], None]) -> None:
        self._queue = queue
        self._wake = wake
        self._at = math.inf

    def set(self, when: float | None) -> None:
        """Wake at `when` [s], unless an earlier wake-up is already set."""
        if when is not None and when < self._at:
            self._at = when
            self._queue.at(when, self._due, when)

    def _due(self, when: float) -> None:
        if when == self._at:
            self._at = math.inf
            self._wake()
