"""Mover of experts: rounds of moves in four phases while tokens flow, within a byte rate and a deadline.

    FETCH     copy weights to each target rank's staging memory, one after the other, within the byte rate
    DISABLE   switch to a map without the slots that will be overwritten; their experts have other homes
    LOAD      copy weights from staging memory into the slots
    ENABLE    switch to a map with the new homes

A switch of maps is complete when all ranks use the new map, each from the start of one of its steps. A failure or the
deadline undoes the current round: the map leaves out slots that were not loaded, and contents are kept. Earlier rounds
remain, since the map is valid after each round.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from serving.group.core.placement import split
from serving.group.core.slot_ledger import MoveRound, SlotLedger
from serving.values.expert_map import (
    ExpertMap,
    ExpertMove,
    ExpertSlot,
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFailed,
    MoveFetched,
    MoveLoaded,
    MoveOrder,
    MovesEnded,
    MovesStopped,
    SwitchMap,
)


class MovePhase(StrEnum):
    """Phase of a mover."""

    FETCH = "fetch"
    DISABLE = "disable"
    LOAD = "load"
    ENABLE = "enable"
    UNDO = "undo"
    ENDED = "ended"


class MoverTick(msgspec.Struct, frozen=True):
    """Event: `next_wake` is due."""


MoverEvent = MoveFetched | MoveLoaded | MoveFailed | MapSwitched | MovesStopped | MoverTick
MoverEffect = MoveOrder


class ExpertMover:
    """One set of rounds, from the first fetch to the last switch.

    Args:
        rounds: in order.
        loads: {layer: [expert] tokens}, for weights of replicas.
        expert_bytes: size of one expert.
        bytes_per_s: how fast weights may be fetched, all ranks together.
        deadline: when what is not done is undone [s].
        speeds: [rank], as `split` takes them.
    """

    def __init__(
        self,
        ledger: SlotLedger,
        rounds: Sequence[MoveRound],
        loads: Mapping[int, Sequence[float]],
        *,
        expert_bytes: int,
        bytes_per_s: float,
        deadline: float,
        speeds: Sequence[float] | None = None,
    ) -> None:
        ledger.claim()
        self._ledger, self._loads, self._speeds = ledger, loads, speeds
        self._rounds = deque(rounds)
        self._seconds_each = expert_bytes / bytes_per_s
        self._deadline = deadline
        self._to_fetch: deque[ExpertMove] = deque()
        self._awaited: set[ExpertMove] = set()
        self._asked: ExpertMap | None = None
        self._reason: str | None = None
        self.phase = MovePhase.FETCH

    def start(self, now: float) -> list[MoverEffect]:
        """Start the first round."""
        return self._next_round(now)

    def next_wake(self) -> float | None:
        """When a tick is due; None while it waits for an event."""
        if self.phase in (MovePhase.ENDED, MovePhase.UNDO) or self._reason is not None:
            return None
        if self._to_fetch:
            return min(self._ledger.line_free_at, self._deadline)
        return self._deadline

    def on(self, event: MoverEvent, now: float) -> list[MoverEffect]:
        """Continue. A late event, of a round that was undone, only updates the ledger."""
        match event:
            case MoveFetched(move) if self.phase is MovePhase.FETCH and move not in self._to_fetch:
                self._awaited.discard(move)
            case MoveLoaded(move):
                self._ledger.loaded(move.layer, move.to, move.expert)
                if self.phase is MovePhase.LOAD:
                    self._awaited.discard(move)
            case MoveFailed(move, reason):
                self._ledger.loaded(move.layer, move.to, None)
                if move in self._awaited:
                    return self._undo(f"layer {move.layer}, expert {move.expert} to rank {move.to.rank}: {reason}")
            case MapSwitched(version):
                return self._switched(version, now)
        return self._go_on(now)

    def abandon(self, reason: str) -> list[MoverEffect]:
        """End immediately, as after the loss of a rank; the next regrouping makes a new map."""
        return [] if self.phase is MovePhase.ENDED else self._end(reason)

    def _go_on(self, now: float) -> list[MoverEffect]:
        if self.phase in (MovePhase.ENDED, MovePhase.UNDO):
            return []
        if now >= self._deadline and self._reason is None:
            return self._undo("deadline")
        if self.phase is MovePhase.FETCH:
            effects = self._fetch(now)
            return effects if self._to_fetch or self._awaited else [*effects, *self._disable()]
        if self.phase is MovePhase.LOAD and not self._awaited:
            return self._switch(MovePhase.ENABLE)
        return []

    def _next_round(self, now: float) -> list[MoverEffect]:
        if not self._rounds:
            return self._end(None)
        self.phase = MovePhase.FETCH
        self._to_fetch = deque(self._rounds[0].moves)
        self._awaited = set(self._rounds[0].moves)
        return self._go_on(now)

    def _fetch(self, now: float) -> list[MoverEffect]:
        """Fetches that the rate allows by now: each keeps the line busy for its bytes."""
        effects: list[MoverEffect] = []
        while self._to_fetch and self._ledger.line_free_at <= now:
            effects.append(FetchExpert(self._to_fetch.popleft()))
            self._ledger.line_free_at = now + self._seconds_each
        return effects

    def _disable(self) -> list[MoverEffect]:
        """Take the slots of this round out of the map, unless it does not use them."""
        one = self._rounds[0]
        own = {move.to for move in one.moves}
        if any(home.at in own for homes in self._ledger.map.layers[one.layer].homes for home in homes):
            return self._switch(MovePhase.DISABLE, frozenset(own))
        return self._load()

    def _load(self) -> list[MoverEffect]:
        self.phase = MovePhase.LOAD
        moves = self._rounds[0].moves
        self._awaited = set(moves)
        for move in moves:
            self._ledger.begin(move.layer, move.to)
        return [LoadExpert(move) for move in moves] if moves else self._switch(MovePhase.ENABLE)

    def _switch(self, phase: MovePhase, without: frozenset[ExpertSlot] = frozenset()) -> list[MoverEffect]:
        """Ask for a map of what lies in the layer at hand."""
        self.phase = phase
        layer, used = self._rounds[0].layer, self._ledger.map
        new = split(self._ledger.contents(layer, without), self._loads[layer], self._speeds)
        layers = (*used.layers[:layer], new, *used.layers[layer + 1 :])
        self._asked = ExpertMap(self._ledger.next_version(), used.slots, layers)
        return [SwitchMap(self._asked)]

    def _switched(self, version: int, now: float) -> list[MoverEffect]:
        if self._asked is None or version != self._asked.version:
            return []
        self._ledger.switch(self._asked)
        self._asked = None
        if self.phase is MovePhase.DISABLE:
            return self._load()
        if self.phase is MovePhase.ENABLE:
            self._rounds.popleft()
        if self._reason is not None and (self.phase is MovePhase.UNDO or self._rounds):
            return self._end(self._reason)
        self._reason = None  # a deadline that came while the very last switch was awaited: all is done
        return self._next_round(now)

    def _undo(self, reason: str) -> list[MoverEffect]:
        self._reason = reason
        self._to_fetch.clear()
        self._awaited.clear()
        if self.phase is MovePhase.FETCH:
            return self._end(reason)
        if self.phase is MovePhase.ENABLE:
            return []  # the map is good and asked for; no further round begins
        return self._switch(MovePhase.UNDO)

    def _end(self, reason: str | None) -> list[MoverEffect]:
        self.phase = MovePhase.ENDED
        self._asked = None
        self._ledger.release()
        return [MovesEnded(reason)]
