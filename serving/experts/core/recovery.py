"""Recovery of the experts of a lost rank, before the survivors do the step again.

Experts with another home go on there. The others are loaded again into slots that can be spared, or masked: their gate
chooses the next best. Which comes first is the operator's choice. No token is computed between `start` and the switch.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from serving.experts.core.rehome import rehome
from serving.experts.core.slot_ledger import SlotLedger
from serving.experts.core.split import split
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import ExpertMove, LoadExpert, MapSwitched, MoveFailed, MoveLoaded, SwitchMap


class OnLoss(StrEnum):
    """Ways to go on without a rank, in the order in which they are tried.

    A copy that is there is used in any case: naming it only says so.
    """

    REDUNDANT = "redundant"
    RELOAD = "reload"
    MASK = "mask"


class RecoveryEnded(msgspec.Struct, frozen=True):
    """Effect: the group goes on, or cannot.

    Args:
        masked: (layer, expert) that are masked since this loss.
        unserved: (layer, expert) without home that may not be masked: the group must not compute.
    """

    masked: tuple[tuple[int, int], ...]
    unserved: tuple[tuple[int, int], ...]


RecoveryEvent = MoveLoaded | MoveFailed | MapSwitched
RecoveryEffect = LoadExpert | SwitchMap | RecoveryEnded


class ExpertRecovery:
    """Recovery of one group from one loss, or from several that follow each other.

    A mover that was at work must have been abandoned before.

    Args:
        on_loss: what may be done, in order.
        loads: [layer][expert] tokens, for weights and for which copies can be spared.
        deadline: what is not loaded by then counts as failed [s].
    """

    def __init__(
        self, ledger: SlotLedger, on_loss: Sequence[OnLoss], loads: Sequence[Sequence[float]], *, deadline: float
    ) -> None:
        ledger.claim()
        self._ledger, self._on_loss, self._loads, self._deadline = ledger, tuple(on_loss), loads, deadline
        self._masked_before = [one.masked for one in ledger.map.layers]
        self._awaited: set[ExpertMove] = set()
        self._given_up: set[tuple[int, int]] = set()  # (layer, expert) whose load has failed
        self._asked: ExpertMap | None = None
        self.ended = False

    def start(self, lost: frozenset[int]) -> list[RecoveryEffect]:
        """Begin, or begin anew because more ranks were lost meanwhile.

        Effects: the ledger forgets their slots.
        """
        slots = tuple(0 if rank in lost else count for rank, count in enumerate(self._ledger.map.slots))
        self._ledger.resize(slots)
        self._asked = None
        self._awaited = {move for move in self._awaited if slots[move.to.rank]}
        effects: list[RecoveryEffect] = []
        if OnLoss.RELOAD in self._on_loss and not self._masks_first():
            for layer in range(len(self._loads)):
                effects += self._reload(layer)
        return effects or self._go_on()

    def next_wake(self) -> float | None:
        """When `tick` is due; None while nothing is loaded."""
        return self._deadline if self._awaited and not self.ended else None

    def on(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        """Go on when something was loaded, or could not be, or the map is in use."""
        match event:
            case MoveLoaded(move):
                self._ledger.loaded(move.layer, move.to, move.expert)
                return self._settle({move})
            case MoveFailed(move):
                self._ledger.loaded(move.layer, move.to, None)
                if move in self._awaited:
                    self._given_up.add((move.layer, move.expert))
                return self._settle({move})
            case MapSwitched(version) if self._asked is not None and version == self._asked.version:
                self._ledger.switch(self._asked, may_mask=OnLoss.MASK in self._on_loss)
                return self._end(())
        return []

    def tick(self, now: float) -> list[RecoveryEffect]:
        """Give up what is not loaded by the deadline."""
        if now < self._deadline or not self._awaited or self.ended:
            return []
        self._given_up |= {(move.layer, move.expert) for move in self._awaited}
        return self._settle(set(self._awaited))

    def _masks_first(self) -> bool:
        order = self._on_loss
        return OnLoss.MASK in order and order.index(OnLoss.MASK) < order.index(OnLoss.RELOAD)

    def _reload(self, layer: int) -> list[RecoveryEffect]:
        """Loads for a layer's homeless experts, from the pool or the checkpoint."""
        coming = {move.expert for move in self._awaited if move.layer == layer}
        homeless = [expert for expert in self._homeless(layer) if expert not in coming]
        chosen = rehome(homeless, self._ledger.usable(layer), self._loads[layer])
        moves = [ExpertMove(layer, expert, at, None) for at, expert in chosen.items()]
        if moves:  # the map must not name the slots any more; nobody computes by it
            self._ledger.retire(layer, frozenset(chosen))
        for move in moves:
            self._ledger.begin(layer, move.to)
        self._awaited |= set(moves)
        return [LoadExpert(move) for move in moves]

    def _homeless(self, layer: int) -> list[int]:
        """Experts without home that were not masked before, nor given up."""
        held = set(self._ledger.usable(layer).values())
        fine = held | self._masked_before[layer]
        every = range(len(self._loads[layer]))
        return [one for one in every if one not in fine and (layer, one) not in self._given_up]

    def _settle(self, moves: set[ExpertMove]) -> list[RecoveryEffect]:
        if not moves & self._awaited or self.ended:
            return []
        self._awaited -= moves
        return self._go_on()

    def _go_on(self) -> list[RecoveryEffect]:
        """Ask for the map of what lies where, once nothing is awaited; or end if that is not enough."""
        if self._awaited:
            return []
        gone = self._gone()
        if gone and OnLoss.MASK not in self._on_loss:
            return self._end(gone)
        layers = tuple(split(self._ledger.contents(layer), loads) for layer, loads in enumerate(self._loads))
        self._asked = ExpertMap(self._ledger.next_version(), self._ledger.map.slots, layers)
        return [SwitchMap(self._asked)]

    def _gone(self) -> tuple[tuple[int, int], ...]:
        """(layer, expert) that have no home since this loss."""
        return tuple(
            (layer, expert)
            for layer, loads in enumerate(self._loads)
            for expert in sorted(
                set(range(len(loads))) - set(self._ledger.usable(layer).values()) - self._masked_before[layer]
            )
        )

    def _end(self, unserved: tuple[tuple[int, int], ...]) -> list[RecoveryEffect]:
        self.ended = True
        self._asked = None
        self._ledger.release()
        return [RecoveryEnded(() if unserved else self._gone(), unserved)]
