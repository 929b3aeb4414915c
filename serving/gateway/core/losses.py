"""Losses and returns of instances as one gateway sees them, for people: which are dead now, and what is yet to be
reported. Decides nothing; what becomes of the streams is the core's business.
"""

from collections import deque
from collections.abc import Collection

from serving.ids import ReplicaId
from serving.values.traffic import InstanceNotice, NoticeKind

MOST_NOTICES = 256
"""Kept while the scaling board does not answer; older ones are dropped."""


class Losses:
    """Instances that were lost and are still listed, and the notices that the board has not taken yet."""

    def __init__(self) -> None:
        self._lost: dict[ReplicaId, tuple[str, NoticeKind]] = {}
        """Incarnation, and how it was lost."""
        self._notices: deque[InstanceNotice] = deque(maxlen=MOST_NOTICES)

    def lost(self, notice: InstanceNotice, incarnation: str) -> None:
        """An instance died or froze."""
        self._lost[notice.replica] = incarnation, notice.kind
        self._notices.append(notice)

    def came(self, pool: str, replica: ReplicaId, incarnation: str) -> None:
        """An instance is linked. Effects: one that had only seemed dead is noticed as being back."""
        before, _ = self._lost.pop(replica, (None, None))
        if before == incarnation:
            self._notices.append(InstanceNotice("back", pool, replica, "it answers again"))

    def left(self, notice: InstanceNotice) -> None:
        """An instance ended as it was asked to: no loss."""
        self._notices.append(notice)

    def audited(self, finding: str) -> None:
        """The KV-cache pool was audited."""
        self._notices.append(InstanceNotice("audit", "kvcache", ReplicaId(""), finding))

    def poisoned(self, reason: str) -> None:
        """A request was given up because it takes instances down."""
        self._notices.append(InstanceNotice("poison", "", ReplicaId(""), reason))

    def how(self, replica: ReplicaId, incarnation: str) -> NoticeKind | None:
        """How an instance was lost; None = it was not, as far as is known."""
        before, kind = self._lost.get(replica, (None, None))
        return kind if before == incarnation else None

    def retain(self, listed: Collection[ReplicaId]) -> None:
        """Forget instances that are not listed any more."""
        if self._lost:
            self._lost = {replica: one for replica, one in self._lost.items() if replica in listed}

    @property
    def waiting(self) -> bool:
        """Whether there is something to report."""
        return bool(self._notices)

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Notices to report, oldest first. Effects: none; see `reported`."""
        return tuple(self._notices)

    def reported(self, notices: tuple[InstanceNotice, ...]) -> None:
        """The board has taken these."""
        for notice in notices:
            if self._notices and self._notices[0] is notice:  # else it was dropped meanwhile
                self._notices.popleft()
