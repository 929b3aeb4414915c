"""Start times of replicas by phase, from the board's snapshots and from each replica's own measurements.

        Serve's request ──► node ──► placing ──► process ──► imports ──► weights ──► serving ··· first step
        board               board    remainder    └────── reported by replica ────┘  board       replica

All are durations, so clocks of different hosts are never compared. Placing is the remainder of the total: the time
until Ray has a process, and until Serve and the board have noticed that the replica serves.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.signals import KVCACHE
from serving.values.system_tally import (
    FIRST_STEP,
    IMPORTS,
    NODE,
    PHASES,
    PLACING,
    PROCESS,
    TOTAL,
    WEIGHTS,
    StartTimes,
    SystemTally,
)

KEPT = 8
"""Latest starts of a pool from which medians are computed."""
TELL_S = 10.0
"""How long a serving replica may take to report its own phases; without them only the node phase is known."""
Key = tuple[str, str]
"""Pool and name of a replica."""


@dataclass(frozen=True, slots=True)
class SeenStart:
    """A finished start, or a phase that follows it.

    Args:
        seconds: by phase; `total` is everything except the first step.
    """

    pool: str
    replica: str
    seconds: Mapping[str, float]

    @property
    def text(self) -> str:
        """The start as text, such as "serves after 12.3 s: node 8.1, placing 0.9, process 0.6, imports 1.6 s"."""
        parts = ", ".join(f"{phase} {self.seconds[phase]:.1f}" for phase in PHASES if phase in self.seconds)
        return f"serves after {self.seconds[TOTAL]:.1f} s{f': {parts} s' if parts else ''}"


@dataclass(slots=True)
class _Coming:
    """A replica that does not serve yet, or has not reported its own phases.

    Args:
        began: when Serve requested it [s since 1970].
        node_s: time since then that it waited for a node [s]; 0 = it did not wait.
        served: when it was first observed to serve [s since 1970]; 0 = it does not yet.
    """

    began: float
    node_s: float = 0.0
    served: float = 0.0


class StartKeeper:
    """Measures starts from consecutive snapshots, which carry the time."""

    def __init__(self) -> None:
        self._coming: dict[Key, _Coming] = {}
        self._first: dict[Key, str] = {}
        """Incarnations that have not made their first step."""
        self._kept: defaultdict[str, defaultdict[str, deque[float]]] = defaultdict(
            lambda: defaultdict(lambda: deque(maxlen=KEPT))
        )

    def node_came(self, pool: str, now: float) -> None:
        """A node was added for a pool that waited: record the wait for its replicas that are starting."""
        for (name, _), coming in self._coming.items():
            if name == pool and not coming.served:
                coming.node_s = max(0.0, now - coming.began)

    def observe(self, snapshot: ClusterSnapshot) -> list[SeenStart]:
        """Starts that have finished by this snapshot, and first steps."""
        listed: dict[Key, ReplicaPhase] = {}
        for pool, seen in snapshot.deployments.items():
            for replica in seen.replicas:
                key = pool, replica.name
                listed[key] = replica.phase
                if replica.phase is ReplicaPhase.STARTING:
                    self._coming.setdefault(key, _Coming(replica.started_at or snapshot.at))
        self._coming = {key: one for key, one in self._coming.items() if key in listed}
        ended = [
            start
            for key, coming in list(self._coming.items())
            if listed[key] is ReplicaPhase.SERVING and (start := self._end(key, coming, snapshot)) is not None
        ]
        ended += self._first_steps(snapshot)
        for start in ended:
            for phase, seconds in start.seconds.items():
                self._kept[start.pool][phase].append(seconds)
        return ended

    def medians(self) -> dict[str, dict[str, float]]:
        """Median seconds of the latest starts, by pool and phase."""
        return {
            pool: {phase: median(kept) for phase, kept in phases.items() if kept} for pool, phases in self._kept.items()
        }

    def _end(self, key: Key, coming: _Coming, snapshot: ClusterSnapshot) -> SeenStart | None:
        """The start of a serving replica; None while it may still report its own phases."""
        coming.served = coming.served or snapshot.at
        member = _alone(snapshot, key)
        own: Mapping[str, Any] = member.facts.get("start_s") or {} if member is not None else {}
        if not own and snapshot.at - coming.served < TELL_S and key[0] != KVCACHE and not snapshot.instances_of(key[1]):
            return None
        del self._coming[key]
        total = max(0.0, coming.served - coming.began)
        seconds = {TOTAL: total} | ({NODE: min(coming.node_s, total)} if coming.node_s else {})
        if member is not None and own:
            left = total - seconds.get(NODE, 0.0)
            for phase in (WEIGHTS, IMPORTS, PROCESS):  # a process that Ray already had is older than the request
                seconds[phase] = min(left, float(own.get(phase, 0.0)))
                left -= seconds[phase]
            seconds[PLACING] = left
            self._first[key] = member.incarnation
        return SeenStart(*key, seconds)

    def _first_steps(self, snapshot: ClusterSnapshot) -> list[SeenStart]:
        found = []
        for key, incarnation in list(self._first.items()):
            member = _alone(snapshot, key)
            if member is None or member.incarnation != incarnation:
                del self._first[key]
            elif (seconds := float(member.facts.get("first_step_s") or 0.0)) > 0:
                del self._first[key]
                found.append(SeenStart(*key, {FIRST_STEP: seconds}))
        return found


def _alone(snapshot: ClusterSnapshot, key: Key) -> SeenMember | None:
    """The instance of a replica; None if it is a group or has not announced itself."""
    members = snapshot.instances_of(key[1])
    return members[0] if len(members) == 1 and "rank" not in members[0].facts else None


# System-wide counts that gateways export: nodes joined and lost, replica starts by pool.


class TallyKeeper:
    """Counts changes between consecutive snapshots, which carry the time."""

    def __init__(self) -> None:
        self.starts = StartKeeper()
        self._times: dict[str, dict[str, StartTimes]] = {}
        self._joined = self._lost = 0

    def observe(self, before: ClusterSnapshot, snapshot: ClusterSnapshot) -> list[SeenStart]:
        """Compare two snapshots, the first of which may be empty. Returns: finished starts."""
        if before.at:
            old, new = ({node.node for node in one.nodes} for one in (before, snapshot))
            self._joined += len(new - old)
            self._lost += len(old - new - snapshot.left_nodes)
        found = self.starts.observe(snapshot)
        for start in found:
            phases = self._times.setdefault(start.pool, {})
            for phase, seconds in start.seconds.items():
                phases[phase] = phases.get(phase, StartTimes()).with_one(seconds)
        return [start for start in found if TOTAL in start.seconds]

    def tally(self, snapshot: ClusterSnapshot, decisions: Mapping[str, Mapping[str, int]]) -> SystemTally:
        """All counts so far, with nodes and replicas of the latest snapshot."""
        return SystemTally(
            decisions={pool: dict(by_kind) for pool, by_kind in decisions.items()},
            starts={pool: dict(phases) for pool, phases in self._times.items()},
            nodes=len(snapshot.nodes),
            npus=sum(node.npus for node in snapshot.nodes),
            nodes_lost=self._lost,
            nodes_joined=self._joined,
            replicas={
                pool: {phase.value: seen.count(phase) for phase in ReplicaPhase}
                for pool, seen in snapshot.deployments.items()
            },
        )
