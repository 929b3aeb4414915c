"""Journal of a group for whoever looks: its latest moves and rebalances, and counts of those and of lost ranks."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from serving.experts.core.moves import MoveRound
from serving.values.expert_moves import ExpertMove

MOST_MOVES = 40
MOST_REBALANCES = 20
RUNNING = "running"
DONE = "done"
UNDONE = "undone"
OUTCOMES = (DONE, UNDONE)


class MoveJournal:
    """Entries are JSON-ready.

    Args:
        epoch_s: added to times, which are of any clock, to make them seconds since 1970.
    """

    def __init__(self, epoch_s: float = 0.0) -> None:
        self._epoch_s = epoch_s
        self._moves: deque[dict[str, Any]] = deque(maxlen=MOST_MOVES)
        self._rebalances: deque[dict[str, Any]] = deque(maxlen=MOST_REBALANCES)
        self._counts: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._moved = 0
        self._not_grown = 0
        self.changed = False
        """Whether there is something that has not been shown."""

    def begin(self, reason: str, policy: str, rounds: Sequence[MoveRound], gain: float, now: float) -> None:
        """A rebalance, or an operator's move, begins.

        Args:
            gain: largest share of a layer's expert time that is to be saved; 0 = unknown.
        """
        entry = {
            "at_s": round(now + self._epoch_s, 3),
            "reason": reason,
            "policy": policy,
            "layers": sorted({one.layer for one in rounds}),
            "moves": sum(len(one.moves) for one in rounds),
            "gain": round(gain, 4),
            "seconds": None,
            "outcome": RUNNING,
            "problem": None,
        }
        self._rebalances.append(entry)
        self.changed = True

    def moved(self, move: ExpertMove, now: float) -> None:
        """An expert lies in its new slot."""
        self._moved += 1
        self._moves.append(
            {
                "at_s": round(now + self._epoch_s, 3),
                "layer": move.layer,
                "expert": move.expert,
                "from": move.source.rank if move.source is not None else None,
                "to": move.to.rank,
                "slot": move.to.slot,
                "reason": self._rebalances[-1]["reason"] if self._rebalances else "",
            }
        )
        self.changed = True

    def end(self, outcome: str, problem: str | None, map_version: int, now: float) -> None:
        """Note the end of what was begun last."""
        self._counts[outcome] += 1
        if self._rebalances and self._rebalances[-1]["outcome"] == RUNNING:
            last = self._rebalances[-1]
            seconds = round(now + self._epoch_s - last["at_s"], 3)
            last.update(outcome=outcome, problem=problem, seconds=seconds, map_version=map_version)
        self.changed = True

    def lost(self, kind: str) -> None:
        """A rank was lost."""
        self._losses[kind] += 1
        self.changed = True

    def not_grown(self) -> None:
        """The group was to have more ranks, and could not."""
        self._not_grown += 1
        self.changed = True

    def shown(self, now: float) -> dict[str, Any]:
        """All of it, the latest first. Effects: nothing has changed since."""
        self.changed = False
        return {
            "shown_s": round(now + self._epoch_s, 3),
            "moves": [dict(one) for one in reversed(self._moves)],
            "rebalances": [dict(one) for one in reversed(self._rebalances)],
            "outcomes": dict(self._counts),
            "moved": self._moved,
            "losses": dict(self._losses),
            "not_grown": self._not_grown,
        }
