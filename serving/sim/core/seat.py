"""What every driver of an engine in virtual time does: take orders, pass on news, start what runs beside steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

from serving.engine.engine import InstanceEngine
from serving.engine.events import EngineAction, FetchOrder, HandoffClosed, HandoffReady, PullOrder, StoreOrder
from serving.errors import HandoffError, LedgerError, ServingError
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.policy.pool.outcome import FetchReport
from serving.sim.core.events import EventQueue
from serving.sim.core.ports import Movers, Owner, StepTimes
from serving.values.news import Lost, News, Prefilled, ends, refusal
from serving.values.sequence import BlockExtent, HandoffTicket, SequenceSpec

_NO_HASH = BlockHash(b"")
_NO_NODE = NodeId("")
_LAYOUT = "simulated"


class AccountedExtents(Sequence[BlockExtent]):
    """The extents of one ticket: accounted blocks have neither place nor bytes, and are made only for who reads them.

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
class Surroundings:
    """What instances of one supernode share.

    Attributes:
        owner_of: the gateway of a sequence.
        movers: move KV for them.
        block_bytes: of one KV block, for the tickets of their handoffs.
    """

    queue: EventQueue
    times: StepTimes
    owner_of: Callable[[SequenceId], Owner]
    movers: Movers
    block_bytes: int


class EngineSeat:
    """One engine with its surroundings.

    Args:
        name: of the instance; `die`: the engine's place in it.
        kick: called when the engine may have something to do that it had not before.
    """

    __slots__ = (
        "_block_bytes",
        "_kick",
        "_movers",
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
        around: Surroundings,
        kick: Callable[["EngineSeat"], None],
        on_end: Callable[[SequenceId], None] | None = None,
    ) -> None:
        self.engine = engine
        self.name = name
        self.die = die
        self.on_end = on_end
        """Told every sequence that has left the engine."""
        self._queue = around.queue
        self._owner_of = around.owner_of
        self._movers = around.movers
        self._block_bytes = around.block_bytes
        self._kick = kick
        self.dead = False
        """Its instance was lost: what still arrives falls to the ground."""

    def add(self, spec: SequenceSpec) -> None:
        """A prompt to compute."""
        try:
            self.engine.add(spec, self._queue.now)
        except ServingError as error:
            self._refuse(spec.sequence_id, error)
            return
        self._kick(self)

    def adopt(self, spec: SequenceSpec, ticket: HandoffTicket) -> None:
        """A handoff to pull."""
        try:
            self.engine.adopt(spec, ticket, self._queue.now)
        except ServingError as error:
            self._refuse(spec.sequence_id, error)
            return
        self.start_pulls()

    def start_pulls(self) -> None:
        """Begin the pulls that there is room for; what is here already joins at the next step."""
        for order in self.engine.start_pulls(self._queue.now):
            self._pull(order)
        if self.pass_on():
            self._kick(self)

    def release(self, ticket_id: str, *, distrust: bool) -> None:
        """A handoff is over; there may be room now."""
        self.engine.release(ticket_id, self._queue.now, distrust=distrust)
        self.pass_on()
        self._kick(self)

    def cancel(self, sequence_id: SequenceId) -> None:
        """Nobody waits for it any more."""
        self.engine.cancel(sequence_id, self._queue.now)
        self.pass_on()
        if self.on_end is not None:
            self.on_end(sequence_id)
        self._kick(self)

    def move_out(self) -> None:
        """Nobody else is to come; what is inside goes on elsewhere from the next step on."""
        self.engine.move_out(self._queue.now)
        self.pass_on()
        self._kick(self)

    def lose(self, sequence_id: SequenceId) -> int:
        """Its KV is gone: the engine forgets it, its gateway sends it elsewhere.

        Returns: tokens that must be computed again.
        """
        sequence = self.engine.sequences.get(sequence_id)
        tokens = sequence.num_computed if sequence is not None else 0
        self.cancel(sequence_id)
        self._tell([Lost(sequence_id, "the memory that held it was lost")])
        return tokens

    def start(self, action: EngineAction) -> None:
        """Begin what an action asks for beside its plan."""
        for order in action.pulls:
            self._pull(order)
        for fetch in action.fetches:
            self._movers.fetch(fetch, self.name, self._fetched)
        for store in action.stores:
            self._movers.store(store, self.name, self._stored)

    def pass_on(self) -> bool:
        """Tell the gateways the engine's news. Returns: whether there was any."""
        events = self.engine.take_events()
        if not events:
            return False
        on_end = self.on_end
        told: list[News] = []
        for event in events:
            if isinstance(event, HandoffReady):
                told.append(Prefilled(event.first, self._ticket(event)))
                continue
            if on_end is not None and (isinstance(event, HandoffClosed) or ends(event)):
                on_end(event.sequence_id)
            if not isinstance(event, HandoffClosed):
                told.append(event)
        if told:
            self._tell(told)
        return True

    def _tell(self, told: list[News]) -> None:
        """Each owner gets its news in one go."""
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

    def _refuse(self, sequence_id: SequenceId, error: ServingError) -> None:
        if isinstance(error, LedgerError):
            raise error
        if self.on_end is not None:
            self.on_end(sequence_id)
        self._tell([refusal(sequence_id, error)])

    def _pull(self, order: PullOrder) -> None:
        here = order.first_block * self.engine.settings.block_tokens
        self._movers.pull(order, self.name, self.die, order.ticket.computed_tokens - here, self._pulled)

    def _pulled(self, outcome: tuple[PullOrder, int, HandoffError | None]) -> None:
        if self.dead:
            return
        order, moved, error = outcome
        self.engine.pull_finished(order.sequence_id, error, moved, self._queue.now)
        self.pass_on()
        self._kick(self)

    def _fetched(self, outcome: tuple[FetchOrder, FetchReport]) -> None:
        if self.dead:
            return
        order, report = outcome
        self.engine.fetch_finished(order.sequence_id, report, self._queue.now)
        self._kick(self)

    def _stored(self, order: StoreOrder) -> None:
        if self.dead:
            return
        self.engine.store_finished(order.order_id, self._queue.now)
        if self.engine.scheduler.waiting.items:  # perhaps for the blocks that were pinned
            self._kick(self)


class WakeTimer:
    """Asks again at the earliest moment that an engine named, without filling the heap with later ones."""

    __slots__ = ("_at", "_queue", "_wake")

    def __init__(self, queue: EventQueue, wake: Callable[[], None]) -> None:
        self._queue = queue
        self._wake = wake
        self._at = math.inf

    def set(self, when: float | None) -> None:
        """Wake at this moment, unless an earlier one is set already. Effects: may add an event."""
        if when is not None and when < self._at:
            self._at = when
            self._queue.at(when, self._due, when)

    def _due(self, when: float) -> None:
        if when == self._at:
            self._at = math.inf
            self._wake()
