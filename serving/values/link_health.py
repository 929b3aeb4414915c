"""Health of the KV transfer path between two instances: a saturated path is not a lost one.

Pulls run concurrently with the engine loops, so heartbeats do not cover their path. For each pair of a puller and a
source, two signals are watched: how transfers end, and how long it takes to read a dummy block on an idle path.

    dummies arrive late      the puller or the path is saturated: back-pressure, handoffs avoid this pair; no failover
    no block arrives         the path is broken: this pair is isolated, all others continue; dummies detect its recovery

Three results in a row degrade the state and two in a row improve it, so that one slow read on a busy node has no
effect. A real block that arrives ends a loss immediately.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from serving.ids import ReplicaId

WORSE_AFTER = 3
BETTER_AFTER = 2


class LinkState(Enum):
    """State of one pair of instances."""

    HEALTHY = "healthy"
    SATURATED = "saturated"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Thresholds by which a link is probed and judged.

    Args:
        period_s: idle time after which a pair is probed with a dummy [s]; 0 = never.
        late_s: a dummy that takes longer is late [s].
        lost_s: a dummy that takes longer counts as lost [s].
    """

    period_s: float
    late_s: float
    lost_s: float


class LinkHealth:
    """Health of one pair, measured by its puller."""

    def __init__(self, limits: LinkLimits, now: float) -> None:
        self.state = LinkState.HEALTHY
        self.since = now
        """When the state began."""
        self._limits = limits
        self._passed_at = now
        self._asked_at = now
        self._late = 0
        self._prompt = 0
        self._missing = 0

    def dummy_due(self, now: float) -> bool:
        """Whether to read a dummy now: the path has been idle and unprobed for a period. Then call `dummy_sent`."""
        period = self._limits.period_s
        return period > 0 and now - max(self._passed_at, self._asked_at) >= period

    def dummy_sent(self, now: float) -> None:
        """Note that a dummy was requested."""
        self._asked_at = now

    def dummy_arrived(self, seconds: float, now: float) -> LinkState:
        """Record a dummy's duration. Returns: the new state."""
        self._passed_at = now
        self._missing = 0
        if seconds <= self._limits.late_s:
            self._late, self._prompt = 0, self._prompt + 1
            if self._prompt >= BETTER_AFTER:
                self._become(LinkState.HEALTHY, now)
        else:
            self._late, self._prompt = self._late + 1, 0
            if self._late >= (BETTER_AFTER if self.state is LinkState.LOST else WORSE_AFTER):
                self._become(LinkState.SATURATED, now)
        return self.state

    def blocks_arrived(self, now: float) -> None:
        """Record a successful transfer of real blocks. Its duration is ignored, as it depends on the number of blocks.

        Effects: ends a loss; without dummies, only a transfer can end one.
        """
        self._passed_at = now
        self._missing = 0
        if self.state is LinkState.LOST:
            self._become(LinkState.HEALTHY, now)

    def nothing_arrived(self, now: float) -> LinkState:
        """Record a dummy or a transfer without a result. Returns: the new state."""
        self._missing, self._prompt, self._late = self._missing + 1, 0, 0
        if self._missing >= WORSE_AFTER:
            self._become(LinkState.LOST, now)
        return self.state

    def _become(self, state: LinkState, now: float) -> None:
        if state is not self.state:
            self.state, self.since = state, now


@dataclass(frozen=True, slots=True)
class PathFault:
    """An instance's report about paths: the sources that it cannot reach, and those that it reaches slowly."""

    lost: tuple[ReplicaId, ...] = ()
    late: tuple[ReplicaId, ...] = ()


def decodes_to_avoid(source: ReplicaId, troubles: Mapping[ReplicaId, PathFault]) -> tuple[ReplicaId, ...]:
    """Decode instances that should not pull from `source`.

    Args:
        troubles: of all decode instances that could.
    Returns: those that cannot reach it, and those that reach it slowly unless no instance would be left; sorted.
    """
    lost = {replica for replica, trouble in troubles.items() if source in trouble.lost}
    slow = {replica for replica, trouble in troubles.items() if source in trouble.late}
    return tuple(sorted(lost if lost | slow == set(troubles) else lost | slow))


def prefills_to_avoid(sources: Collection[ReplicaId], troubles: Mapping[ReplicaId, PathFault]) -> tuple[ReplicaId, ...]:
    """Prefill instances whose blocks no decode instance could pull.

    Args:
        sources: all prefill instances.
        troubles: of all decode instances; empty = unknown.
    """
    if not troubles:
        return ()
    return tuple(sorted(s for s in sources if all(s in trouble.lost for trouble in troubles.values())))
