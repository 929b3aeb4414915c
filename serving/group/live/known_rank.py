"""State that a shell keeps of a rank."""

from dataclasses import dataclass

from serving.group.core.group_course import RankSnapshot
from serving.group.core.rank_names import RankName
from serving.values.group import RankPhase, RankReport


@dataclass(slots=True)
class KnownRank:
    """One rank of a group, with its last report and the time of it."""

    name: RankName
    heard_at: float = 0.0
    dead: bool = False
    report: RankReport | None = None

    @property
    def serves(self) -> bool:
        """Whether its last report is from a computing phase."""
        return self.report is not None and self.report.phase in (RankPhase.SERVING, RankPhase.LEAVING)

    def sight(self, now: float) -> RankSnapshot:
        """Snapshot; a rank that has never responded is not silent, as it may wait for its placement."""
        return RankSnapshot(self.dead, now - self.heard_at if self.report is not None else 0.0, self.report)
