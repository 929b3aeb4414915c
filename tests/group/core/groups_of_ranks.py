"""A group of ranks that executes a mover's commands in any order, and checks that no token is computed with wrong
weights.
"""

from collections.abc import Iterable, Sequence

from serving.group.core.mover import MoverEffect, MoverEvent
from serving.group.core.slot_ledger import SlotLedger
from serving.values.expert_map import (
    ExpertMove,
    ExpertSlot,
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFetched,
    MoveLoaded,
    MovesEnded,
    SwitchMap,
)


class RankGroup:
    """Real contents of all slots, independent of the ledger, and commands received but not executed."""

    def __init__(self, ledger: SlotLedger) -> None:
        self.map = ledger.map
        self.weights: dict[tuple[int, ExpertSlot], int | None] = {}
        for layer, one in enumerate(ledger.map.layers):
            for expert, homes in enumerate(one.homes):
                self.weights.update({(layer, home.at): expert for home in homes})
        self.staged: dict[tuple[int, ExpertSlot], int] = {}
        self.asked: list[MoverEffect] = []
        self.fetches: list[tuple[float, ExpertMove]] = []
        self.ended: list[MovesEnded] = []

    def take(self, effects: Iterable[MoverEffect], now: float) -> None:
        """Record the mover's commands."""
        for effect in effects:
            if isinstance(effect, MovesEnded):
                self.ended.append(effect)
            else:
                self.asked.append(effect)
                if isinstance(effect, FetchExpert):
                    self.fetches.append((now, effect.move))
                if isinstance(effect, LoadExpert):  # the slot is written bit by bit from now on
                    self.weights[effect.move.layer, effect.move.to] = None
        self.check()

    def do(self, index: int) -> MoverEvent:
        """Execute one command."""
        effect = self.asked.pop(index)
        match effect:
            case FetchExpert(move):
                if move.source is not None:
                    assert self.weights[move.layer, move.source] == move.expert, "fetched from a wrong slot"
                self.staged[move.layer, move.to] = move.expert
                return MoveFetched(move)
            case LoadExpert(move):
                if move.source is not None:
                    assert self.staged[move.layer, move.to] == move.expert, "loaded before it was staged"
                self.weights[move.layer, move.to] = move.expert
                return MoveLoaded(move)
            case SwitchMap(new):
                if new.version > self.map.version:
                    self.map = new
                self.check()
                return MapSwitched(new.version)
        raise AssertionError(effect)

    def check(self) -> None:
        """Check that the current map is valid, and that every slot it names holds its expert."""
        self.map.check()
        for layer, one in enumerate(self.map.layers):
            for expert, homes in enumerate(one.homes):
                assert all(self.weights[layer, home.at] == expert for home in homes), "a token would meet wrong weights"


def check_rate(fetches: Sequence[tuple[float, ExpertMove]], seconds_each: float) -> None:
    """Check that no interval has more fetched bytes than the rate, plus one expert."""
    times = [at for at, _ in fetches]
    for first in range(len(times)):
        for last in range(first + 1, len(times)):
            assert (last - first) * seconds_each <= times[last] - times[first] + 1e-9
