"""Growth of a group: which ranks are newcomers, when the next one's process starts, when the group stays as it was."""

from collections.abc import Mapping

from serving.group.core.group_course import RankSnapshot
from serving.values.group import RankPhase

MOST_TRIES = 3
"""Processes of one newcomer that may end before it joins; then another one would end, too."""


class GroupGrowth:
    """One growth; a group that does not grow has none.

    Args:
        former: ranks that it had; 0 = it does not grow.
        births: processes that each rank had had when this began, or when this shell took the group over.
    """

    def __init__(self, former: int = 0, births: Mapping[int, int] | None = None) -> None:
        self.former = former
        self._births = dict(births or {})

    def __bool__(self) -> bool:
        return self.former > 0

    def is_new(self, rank: int) -> bool:
        """Whether a rank is one that the group grows by."""
        return 0 < self.former <= rank

    def hopeless(self, births: Mapping[int, int]) -> bool:
        """Whether a newcomer cannot be built.

        Args:
            births: processes that each rank has had by now.
        """
        return any(
            self.is_new(rank) and count - self._births.get(rank, 0) > MOST_TRIES for rank, count in births.items()
        )

    def given_up(self, group: str, size: int) -> str:
        """Words for an operator."""
        return (
            f"{group} cannot have {size} ranks: the new ones cannot be built, see their logs. It keeps "
            f"{self.former}. Fix the cause, then run `cloudmatrix experts resize` again"
        )


def former_size(before: int, former: int, size: int) -> int:
    """Ranks to which a group falls back that is to have another size; 0 = it does not grow.

    Args:
        before: ranks that it was to have until now. former: those to which it would have fallen back then.
        size: ranks that it is to have.
    """
    base = former or before
    return base if size > base else 0


def unbuildable(ranks: Mapping[int, RankSnapshot], births: Mapping[int, int], size: int, most_tries: int) -> str | None:
    """Why a new group cannot be built; None if no failure is known.

    Args:
        births: processes started for each rank. most_tries: limit of those.
    """
    for rank, one in sorted(ranks.items()):
        if one.report is not None and one.report.phase is RankPhase.FAILED:
            return f"rank {rank} of {size}: {one.report.problem}"
        if births[rank] > most_tries:
            return f"rank {rank} of {size}: its process ended {most_tries} times"
    return None
