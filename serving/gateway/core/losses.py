"""Losses and returns of instances as observed by one gateway, for people: instances that are dead now, and unreported
notices. Decides nothing; the core handles the streams.
"""

from collections import deque
from collections.abc import Collection

from serving.ids import ReplicaId
from serving.values.traffic import InstanceNotice, NoticeKind

MOST_NOTICES = 256
"""Notices kept while the scaling board does not respond; older ones are dropped."""


class Losses:
    """Lost instances that are still listed, and notices that the board has not received yet."""

    def __init__(self) -> None:
        self._lost: dict[ReplicaId, tuple[str, NoticeKind]] = {}
        """Incarnation, and kind of loss."""
        self._notices: deque[InstanceNotice] = deque(maxlen=MOST_NOTICES)

    def lost(self, notice: InstanceNotice, incarnation: str) -> None:
        """Note that an instance died or froze."""
        self._lost[notice.replica] = incarnation, notice.kind
        self._notices.append(notice)

    def came(self, pool: str, replica: ReplicaId, incarnation: str) -> None:
        """Note that an instance is linked. Effects: if it had only seemed dead, adds a notice that it is back."""
        before, _ = self._lost.pop(replica, (None, None))
        if before == incarnation:
            self._notices.append(InstanceNotice("back", pool, replica, "it answers again"))

    def left(self, notice: InstanceNotice) -> None:
        """Note an orderly exit, which is not a loss."""
        self._notices.append(notice)

    def audited(self, finding: str) -> None:
        """Note an audit of the KV-cache pool."""
        self._notices.append(InstanceNotice("audit", "kvcache", ReplicaId(""), finding))

    def poisoned(self, reason: str) -> None:
        """Note that a request was abandoned because it crashes instances."""
        self._notices.append(InstanceNotice("poison", "", ReplicaId(""), reason))

    def how(self, replica: ReplicaId, incarnation: str) -> NoticeKind | None:
        """Kind of an instance's loss; None = not known as lost."""
        before, kind = self._lost.get(replica, (None, None))
        return kind if before == incarnation else None

    def retain(self, listed: Collection[ReplicaId]) -> None:
        """Drop instances that are no longer listed."""
        if self._lost:
            self._lost = {replica: one for replica, one in self._lost.items() if replica in listed}

    @property
    def waiting(self) -> bool:
        """Whether there are notices to report."""
        return bool(self._notices)

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Notices to report, oldest first; they are kept until `reported`."""
        return tuple(self._notices)

    def reported(self, notices: tuple[InstanceNotice, ...]) -> None:
        """Drop notices that the board has received."""
        for notice in notices:
            if self._notices and self._notices[0] is notice:  # otherwise it was dropped in the meantime
                self._notices.popleft()
