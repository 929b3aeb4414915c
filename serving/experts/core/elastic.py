"""Growing and shrinking a group while it serves: experts move first, ranks join or leave afterwards.

    grow      empty slots are added; experts move there; the new ranks join
    shrink    experts that would be lost move; the map does without the leaving ranks; their streams drain; they leave

Every map on the way is good, so a resize that fails leaves a group that serves: a shrink keeps its ranks, a grow lets
them join with what they have, and a later rebalance does the rest.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from serving.errors import PlacementError
from serving.experts.core.load import LayerLoad, total
from serving.experts.core.mover import ExpertMover, MoverEffect, MoverEvent
from serving.experts.core.moves import MoveRound, move_rounds
from serving.experts.core.placement import PlacementPolicy
from serving.experts.core.rebalance import RebalanceSettings, target_slots
from serving.experts.core.rehome import rehome
from serving.experts.core.slot_ledger import SlotLedger
from serving.experts.core.split import split
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import MapSwitched, MovesEnded, SwitchMap


class ResizePhase(StrEnum):
    """Where a resize is."""

    MOVE = "move"
    RETIRE = "retire"
    DRAIN = "drain"
    ENDED = "ended"


class AdmitRanks(msgspec.Struct, frozen=True):
    """Effect: new ranks may take sequences from the next step boundary on."""

    ranks: tuple[int, ...]


class DrainRanks(msgspec.Struct, frozen=True):
    """Effect: ranks hold no expert that is used; their sequences are to move."""

    ranks: tuple[int, ...]


class ReleaseRanks(msgspec.Struct, frozen=True):
    """Effect: ranks are empty and may end."""

    ranks: tuple[int, ...]


class ResizeEnded(msgspec.Struct, frozen=True):
    """Effect: the group has its new size; with a reason it does not, or its experts have not all moved."""

    reason: str | None


class RankDrained(msgspec.Struct, frozen=True):
    """Event: a leaving rank has no sequence any more."""

    rank: int


ResizeEvent = MoverEvent | RankDrained
ResizeEffect = MoverEffect | AdmitRanks | DrainRanks | ReleaseRanks | ResizeEnded


class GroupResize:
    """One change of size; made by `grow` or `shrink`."""

    def __init__(
        self,
        ledger: SlotLedger,
        loads: Sequence[Sequence[float]],
        rounds: Sequence[MoveRound],
        settings: RebalanceSettings,
        *,
        joining: tuple[int, ...] = (),
        leaving: tuple[int, ...] = (),
        now: float,
    ) -> None:
        self._ledger, self._loads = ledger, loads
        self._joining, self._leaving = joining, leaving
        self._draining = set(leaving)
        self._asked: ExpertMap | None = None
        self.phase = ResizePhase.MOVE
        self._mover = ExpertMover(
            ledger,
            rounds,
            dict(enumerate(loads)),
            expert_bytes=settings.expert_bytes,
            bytes_per_s=settings.bytes_per_s,
            deadline=now + settings.deadline_s,
        )

    def start(self, now: float) -> list[ResizeEffect]:
        """Begin to move experts."""
        return self._after_moves(self._mover.start(now))

    def next_wake(self) -> float | None:
        """When a tick is due; None while an event has to come first."""
        return self._mover.next_wake() if self.phase is ResizePhase.MOVE else None

    def on(self, event: ResizeEvent, now: float) -> list[ResizeEffect]:
        """Go on."""
        if isinstance(event, RankDrained):
            self._draining.discard(event.rank)
            return self._released() if self.phase is ResizePhase.DRAIN and not self._draining else []
        if isinstance(event, MapSwitched) and self._asked is not None and event.version == self._asked.version:
            self._ledger.switch(self._asked)
            self._asked = None
            self.phase = ResizePhase.DRAIN
            return [DrainRanks(self._leaving)] if self._draining else self._released()
        effects = self._mover.on(event, now)
        return self._after_moves(effects) if self.phase is ResizePhase.MOVE else list(effects)

    def on_rank_lost(self) -> list[ResizeEffect]:
        """Stop where it is; recovery makes the next map. Ranks that were to leave stay, joining ones join later."""
        if self.phase is ResizePhase.ENDED:
            return []
        if self.phase is ResizePhase.MOVE:
            self._mover.abandon("a rank was lost")
        else:
            self._ledger.release()
        return self._ended("a rank was lost")

    def _after_moves(self, effects: Sequence[MoverEffect]) -> list[ResizeEffect]:
        """Pass on what the mover wants; its end is where ranks join, or the map does without those that leave."""
        found: list[ResizeEffect] = []
        for effect in effects:
            if not isinstance(effect, MovesEnded):
                found.append(effect)
            elif self._joining:
                found += [AdmitRanks(self._joining), *self._ended(effect.reason)]
            elif effect.reason is not None:
                found += self._ended(effect.reason)
            else:
                found += self._retire()
        return found

    def _retire(self) -> list[ResizeEffect]:
        """Ask for a map without the leaving ranks; nobody else may change it until they have left."""
        self._ledger.claim()
        self.phase = ResizePhase.RETIRE
        used = self._ledger.map
        layers = []
        for layer, loads in enumerate(self._loads):
            held = self._ledger.contents(layer)
            stay = tuple((None,) * len(row) if rank in self._leaving else row for rank, row in enumerate(held))
            layers.append(split(stay, loads))
        self._asked = ExpertMap(self._ledger.next_version(), used.slots, tuple(layers))
        return [SwitchMap(self._asked)]

    def _released(self) -> list[ResizeEffect]:
        slots = self._ledger.map.slots
        self._ledger.resize(tuple(0 if rank in self._leaving else count for rank, count in enumerate(slots)))
        self._ledger.release()
        return [ReleaseRanks(self._leaving), *self._ended(None)]

    def _ended(self, reason: str | None) -> list[ResizeEffect]:
        self.phase = ResizePhase.ENDED
        self._asked = None
        return [ResizeEnded(reason)]


def grow(
    ledger: SlotLedger,
    slots: Sequence[int],
    nodes: tuple[int, ...],
    loads: Sequence[LayerLoad],
    policy: PlacementPolicy,
    settings: RebalanceSettings,
    now: float,
) -> GroupResize:
    """Add ranks behind the present ones.

    Args:
        slots: of each new rank.
        nodes: [rank] node, the new ones included.
        loads: [layer], what experts are placed for.
    Raises: LedgerError if experts are being moved.
    Effects: the ledger has the new ranks' empty slots.
    """
    before = ledger.map.slots
    if not ledger.busy:
        ledger.resize((*before, *slots))
    rounds: list[MoveRound] = []
    for layer, load in enumerate(loads):
        rounds += move_rounds(layer, ledger.usable(layer), target_slots(ledger, layer, load, policy, nodes)) or ()
    joining = tuple(range(len(before), len(before) + len(slots)))
    return GroupResize(ledger, _totals(ledger, loads), rounds, settings, joining=joining, now=now)


def shrink(
    ledger: SlotLedger, leaving: frozenset[int], loads: Sequence[LayerLoad], settings: RebalanceSettings, now: float
) -> GroupResize:
    """Take ranks away, with as few moves as possible: only experts that lie nowhere else move.

    Raises: PlacementError if the others cannot hold every expert. LedgerError if experts are being moved.
    """
    totals, rounds = _totals(ledger, loads), list[MoveRound]()
    for layer, one in enumerate(totals):
        current = ledger.usable(layer)
        stay = {at: held for at, held in current.items() if at.rank not in leaving}
        homeless = sorted({held for held in current.values() if held is not None} - set(stay.values()))
        chosen = rehome(homeless, stay, one)
        if len(chosen) < len(homeless):
            raise PlacementError(
                f"layer {layer}: {len(homeless)} experts lie on the leaving ranks only, and {len(chosen)} of them fit "
                "elsewhere; keep more ranks or give them more redundant slots"
            )
        rounds += move_rounds(layer, current, {**current, **chosen}) or ()
    return GroupResize(ledger, totals, rounds, settings, leaving=tuple(sorted(leaving)), now=now)


def _totals(ledger: SlotLedger, loads: Sequence[LayerLoad]) -> list[tuple[int, ...]]:
    """[layer][expert] tokens."""
    return [total(load, len(one.homes)) for load, one in zip(loads, ledger.map.layers, strict=True)]
