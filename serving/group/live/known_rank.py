"""A rank as its shell knows it."""

from dataclasses import dataclass

from serving.group.core.group_course import RankSnapshot
from serving.group.core.rank_names import RankName
from serving.values.group import RankPhase, RankReport


@dataclass(slots=True)
class KnownRank:
    """One rank of a group, with what it said last and when."""

    name: RankName
    heard_at: float = 0.0
    dead: bool = False
    report: RankReport | None = None

    @property
    def serves(self) -> bool:
        """Whether it computes with its group, as far as it is known."""
        return self.report is not None and self.report.phase in (RankPhase.SERVING, RankPhase.LEAVING)

    def sight(self, now: float) -> RankSnapshot:
        """One that has never answered may still wait for its place."""
        return RankSnapshot(self.dead, now - self.heard_at if self.report is not None else 0.0, self.report)
