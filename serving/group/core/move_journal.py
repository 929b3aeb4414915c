"""Journal of a group for status pages: its latest moves and rebalances, and counts of them and of lost ranks."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from serving.group.core.slot_ledger import MoveRound
from serving.group.core.straggler import MeasureChanged
from serving.values.expert_map import ExpertMove

MOST_MOVES = 40
MOST_REBALANCES = 20
MOST_MEASURES = 20
NEWS = 0.05
"""Change of a rank's pace from which the journal counts as changed."""
RUNNING = "running"
DONE = "done"
UNDONE = "undone"
OUTCOMES = (DONE, UNDONE)


class MoveJournal:
    """Entries are JSON-ready.

    Args:
        epoch_s: added to times of the caller's clock to get seconds since 1970.
    """

    def __init__(self, epoch_s: float = 0.0) -> None:
        self._epoch_s = epoch_s
        self._moves: deque[dict[str, Any]] = deque(maxlen=MOST_MOVES)
        self._rebalances: deque[dict[str, Any]] = deque(maxlen=MOST_REBALANCES)
        self._counts: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._moved = 0
        self._not_grown = 0
        self._paces: dict[int, float] = {}
        self._treated: dict[int, str] = {}
        self._measures: deque[dict[str, Any]] = deque(maxlen=MOST_MEASURES)
        self._taken: Counter[str] = Counter()
        self._spares: list[int] = []
        self.changed = False
        """Whether there are entries that `shown` has not returned."""

    def begin(self, reason: str, policy: str, rounds: Sequence[MoveRound], gain: float, now: float) -> None:
        """Record the start of a rebalance or of an operator's move.

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
        """Record that an expert is in its new slot."""
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
        """Record the end of the last rebalance or move."""
        self._counts[outcome] += 1
        if self._rebalances and self._rebalances[-1]["outcome"] == RUNNING:
            last = self._rebalances[-1]
            seconds = round(now + self._epoch_s - last["at_s"], 3)
            last.update(outcome=outcome, problem=problem, seconds=seconds, map_version=map_version)
        self.changed = True

    def lost(self, kind: str) -> None:
        """Count a lost rank."""
        self._losses[kind] += 1
        self.changed = True

    def set_spares(self, ranks: Sequence[int]) -> None:
        """Record the ranks that wait to join."""
        self.changed |= self._spares != list(ranks)
        self._spares = list(ranks)

    def not_grown(self) -> None:
        """Count a growth that was given up."""
        self._not_grown += 1
        self.changed = True

    def pace(
        self,
        paces: Mapping[int, float],
        treated: Mapping[int, str],
        changes: Sequence[MeasureChanged],
        now: float,
    ) -> None:
        """Record the paces of ranks after they were judged.

        Args:
            paces: time for the same work over the median's, by rank. treated: measures in force, by rank.
            changes: of those.
        """
        for one in changes:
            self._taken[one.measure.value] += 1
            entry = {"at_s": round(now + self._epoch_s, 3), "rank": one.rank, "measure": one.measure.value}
            self._measures.append(entry | {"reason": one.reason})
        moved = any(abs(pace - self._paces.get(rank, 0.0)) >= NEWS for rank, pace in paces.items())
        if moved or changes or paces.keys() != self._paces.keys() or treated != self._treated:
            self._paces = {rank: round(pace, 3) for rank, pace in paces.items()}
            self._treated = dict(treated)
            self.changed = True

    def shown(self, now: float) -> dict[str, Any]:
        """All entries, latest first. Effects: clears `changed`."""
        self.changed = False
        return {
            "shown_s": round(now + self._epoch_s, 3),
            "moves": [dict(one) for one in reversed(self._moves)],
            "rebalances": [dict(one) for one in reversed(self._rebalances)],
            "outcomes": dict(self._counts),
            "moved": self._moved,
            "losses": dict(self._losses),
            "not_grown": self._not_grown,
            "paces": {str(rank): pace for rank, pace in self._paces.items()},
            "treated": {str(rank): measure for rank, measure in self._treated.items()},
            "measures": [dict(one) for one in reversed(self._measures)],
            "measures_taken": dict(self._taken),
            "spares": list(self._spares),
        }
