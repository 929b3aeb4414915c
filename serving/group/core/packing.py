"""Greedy packing of copies of experts: each is assigned to the least loaded rank with room that lacks the expert."""

from collections import Counter
from collections.abc import Sequence

from serving.values.expert_map import Placement


class RankPacking:
    """Ranks that are being filled.

    Args:
        slots: [rank] number of copies it takes.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots = slots
        self._held: list[dict[int, float]] = [{} for _ in slots]  # [rank] expert -> load of this copy, in order
        self._fixed: set[tuple[int, int]] = set()  # (rank, expert) that must stay
        self._loads = [0.0] * len(slots)

    def fix(self, rank: int, expert: int, load: float) -> None:
        """Assign a copy to a rank permanently; later choices count its load."""
        self._lay(rank, expert, load)
        self._fixed.add((rank, expert))

    def put(self, expert: int, load: float) -> bool:
        """Assign a copy to the best rank. False if it does not fit: each rank with room holds this expert."""
        free = [rank for rank, slots in enumerate(self._slots) if len(self._held[rank]) < slots]
        fine = [rank for rank in free if expert not in self._held[rank]]
        if fine:
            self._lay(min(fine, key=self._loads.__getitem__), expert, load)
            return True
        return self._swap(free, expert, load)

    def fill(self, experts: Sequence[int], loads: Sequence[float], most: int) -> None:
        """Fill free slots, each with the expert that has the most tokens per copy and is missing on the rank.

        Args:
            most: copies of one expert at most.
        """
        copies = Counter(expert for held in self._held for expert in held)
        for rank, slots in enumerate(self._slots):
            while len(self._held[rank]) < slots:
                able = [one for one in experts if one not in self._held[rank] and copies[one] < most]
                if not able:
                    break
                best = max(able, key=lambda one: (loads[one] / max(copies[one], 1), -one))
                copies[best] += 1
                self._lay(rank, best, loads[best] / copies[best])

    def placement(self) -> Placement:
        """Copies assigned so far, in order of assignment in each rank."""
        return tuple(
            (*held, *[None] * (slots - len(held))) for held, slots in zip(self._held, self._slots, strict=True)
        )

    def _swap(self, free: Sequence[int], expert: int, load: float) -> bool:
        """Make room on a full rank by moving one of its copies to a rank with room, at the least peak of the two."""
        best: tuple[float, int, int, int] | None = None
        for full in range(len(self._slots)):
            if expert in self._held[full] or not self._slots[full]:
                continue
            for other, its_load in self._held[full].items():
                for rank in free:
                    if other not in self._held[rank] and (full, other) not in self._fixed:
                        peak = max(self._loads[full] - its_load + load, self._loads[rank] + its_load)
                        best = min(best or (peak, full, other, rank), (peak, full, other, rank))
        if best is None:
            return False
        _, full, other, rank = best
        moved = self._held[full].pop(other)
        self._loads[full] -= moved
        self._lay(rank, other, moved)
        self._lay(full, expert, load)
        return True

    def _lay(self, rank: int, expert: int, load: float) -> None:
        self._held[rank][expert] = load
        self._loads[rank] += load
