"""Events of instances and hosts, in a bounded ring that is shown next to the decisions.

There are two sources. A gateway's notice arrives immediately and includes the number of streams moved; notices from
several gateways about the same instance are merged into one event. A snapshot of the cluster arrives up to a second
later and shows what gateways cannot observe: an exited memory server, a lost host, the replacement of a lost replica.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment
from serving.scaling.core.ledger import KeptRows, KeyedValues
from serving.values.system_tally import DeploymentNotice
from serving.values.traffic import InstanceNotice

KEPT_EVENTS = 500
REPLACED_WITHIN_S = 600.0
"""A replica that serves later than this after a loss does not count as its replacement."""


class EventKind(Enum):
    """Kind of event, for filters and colours; the event's text describes it."""

    DIED = "died"
    FROZEN = "frozen"
    """Silent, or without progress of its engine, for longer than `[health]` allows."""
    LEFT = "left"
    """Shut down on request."""
    BACK = "back"
    """Alive after it was considered dead."""
    REPLACED = "replaced"
    STARTED = "started"
    HOST_LOST = "host lost"
    POISON = "poison"
    """A request that crashed the instances processing it is not retried."""
    AUDIT = "audit"
    """An operator had the KV-cache pool compare its ledgers, memory and disk."""
    DEPLOYED = "deployed"
    """A stage of a deployment starts, or its last one has finished."""


_PREFIX = "events/"
LOSSES = {EventKind.DIED, EventKind.FROZEN}


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event.

    Args:
        id: increasing and unique, also across restarts of the board.
        at: seconds since 1970.
        replica: Serve's unique name of the replica, or the name of a lost host.
        streams: moved to other instances.
        tokens: output tokens that the moved streams had by then and did not lose.
    """

    id: int
    at: float
    kind: EventKind
    pool: str
    replica: str
    text: str
    streams: int = 0
    tokens: int = 0

    def row(self) -> dict[str, Any]:
        """The event as shown to users, ready for JSON."""
        return {
            "id": self.id, "at": self.at, "kind": self.kind.value, "pool": self.pool, "replica": self.replica,
            "text": f"{self.text}{self._moved()}", "streams": self.streams, "tokens": self.tokens,
        }  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The event as stored, ready for JSON; `_event` restores it."""
        return {**asdict(self), "kind": self.kind.value}

    def _moved(self) -> str:
        if not self.streams:
            return ""
        moved = f"; {self.streams} stream{'s' * (self.streams > 1)} moved"
        return f"{moved}, {self.tokens:,} tokens resumed" if self.kind in LOSSES else moved


class EventLog:
    """The ring, and the replicas that are currently lost. Time is passed in.

    Args:
        first_id: of the first event: seconds since 1970, because there are fewer events than seconds.
        kept: store of events, including those of a previous board; None = not stored.
    Attributes:
        warnings: about stored events that cannot be read.
    """

    def __init__(self, first_id: int, kept: KeyedValues | None = None) -> None:
        self._rows = KeptRows(kept, _PREFIX)
        self._events = deque(self._rows.read(_event), maxlen=KEPT_EVENTS)
        self.warnings = self._rows.warnings
        self._last_id = max(first_id - 1, self._events[-1].id if self._events else 0)
        self._lost: dict[str, ClusterEvent] = {}
        """By replica, until Serve no longer lists it."""
        self._owed: dict[str, deque[ClusterEvent]] = {}
        """By pool: losses without a serving replacement."""

    def add_notice(self, notice: InstanceNotice, now: float) -> None:
        """Add a gateway's notice, or merge it into the event that it repeats."""
        kind, name = EventKind(notice.kind), notice.replica.rpartition("#")[2]
        known = self._known(kind, name)
        if kind is EventKind.BACK:
            if name in self._lost:
                self._forget(name)
                self._add(now, kind, notice.pool, name, notice.reason)
        elif known is None:
            event = self._add(now, kind, notice.pool, name, notice.reason, notice.streams, notice.tokens)
            if kind in LOSSES:
                self._lose(event)
        else:
            more = replace(known, streams=known.streams + notice.streams, tokens=known.tokens + notice.tokens)
            if name in self._lost:
                self._lost[name] = more
            self._events = deque((more if one.id == more.id else one for one in self._events), maxlen=KEPT_EVENTS)
            self._rows.write(more.id, self._events)

    def observe(self, before: ClusterSnapshot, snapshot: ClusterSnapshot) -> None:
        """Add the events that two consecutive snapshots show."""
        if not before.at:
            return
        here = {node.node for node in snapshot.nodes}
        for node in before.nodes:
            if node.node in snapshot.left_nodes:
                self._add(snapshot.at, EventKind.LEFT, "", node.name, "Ray has taken the host back, or it was stopped")
            elif node.node not in here:
                text = f"{node.npus} NPUs and {node.memory_mib / 1024:g} GiB of UB memory went with it"
                self._add(snapshot.at, EventKind.HOST_LOST, "", node.name, text)
        for pool, seen in snapshot.deployments.items():
            if pool in before.deployments:
                self._compare(pool, before.deployments[pool], seen, snapshot.at)
        listed = {replica.name for seen in snapshot.deployments.values() for replica in seen.replicas}
        for name in [name for name in self._lost if _is_rank(name)]:
            self._look_for_rank(name, before, snapshot)
        self._lost = {name: event for name, event in self._lost.items() if name in listed or _is_rank(name)}

    def started(self, pool: str, replica: str, text: str, now: float) -> None:
        """A replica serves for the first time; `text` includes its start time."""
        self._add(now, EventKind.STARTED, pool, replica, text)

    def deployed(self, notice: DeploymentNotice, now: float) -> None:
        """A stage of a deployment starts, or the deployment has finished."""
        text = f"{notice.author} deploys configuration {notice.configuration}: {notice.stage}"
        self._add(now, EventKind.DEPLOYED, "", "", text)

    def lost(self) -> Mapping[str, EventKind]:
        """Kind of loss of each lost replica that Serve still lists, by name."""
        return {name: event.kind for name, event in self._lost.items()}

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT_EVENTS) -> list[ClusterEvent]:
        """Events with an id above `after`, latest first."""
        found = [e for e in reversed(self._events) if e.id > after and pool in (None, e.pool)]
        return found[:limit]

    def _compare(self, pool: str, before: SeenDeployment, seen: SeenDeployment, now: float) -> None:
        served = {one.name for one in before.replicas if one.phase is ReplicaPhase.SERVING}
        listed = {one.name for one in seen.replicas}
        if seen.target >= before.target:  # else it may have been removed on request
            for name in sorted(served - listed - self._lost.keys()):
                self._lose(self._add(now, EventKind.DIED, pool, name, "its process ended"))
        new = [one.name for one in seen.replicas if one.phase is ReplicaPhase.SERVING and one.name not in served]
        owed = self._owed.get(pool, deque())
        while owed and now - owed[0].at > REPLACED_WITHIN_S:
            owed.popleft()
        for name in new:
            if owed and name not in self._lost:
                lost = owed.popleft()
                text = f"serves in place of {lost.replica}, {now - lost.at:.1f} s after the loss"
                self._add(now, EventKind.REPLACED, pool, name, text)
        alive = sum(one.phase is ReplicaPhase.SERVING and one.name not in self._lost for one in seen.replicas)
        while len(owed) > max(0, seen.target - alive):
            owed.popleft()  # no replacement is requested any more

    def _look_for_rank(self, name: str, before: ClusterSnapshot, snapshot: ClusterSnapshot) -> None:
        """Detect the replacement of a lost rank, which its shell restarts under the same name."""
        lost, old, new = self._lost[name], before.members.get(name), snapshot.members.get(name)
        if new is not None and (old is None or old.incarnation != new.incarnation):
            self._forget(name)
            text = f"serves again, {snapshot.at - lost.at:.1f} s after the loss"
            self._add(snapshot.at, EventKind.REPLACED, lost.pool, name, text)
        elif snapshot.at - lost.at > REPLACED_WITHIN_S:
            self._forget(name)

    def _lose(self, event: ClusterEvent) -> None:
        self._lost[event.replica] = event
        if _is_rank(event.replica):
            return  # its shell replaces it, not Serve
        self._owed.setdefault(event.pool, deque()).append(event)

    def _known(self, kind: EventKind, replica: str) -> ClusterEvent | None:
        """The replica's latest event if of this kind, or both are losses: another source reported the same end."""
        if not replica:
            return None
        newest = next((one for one in reversed(self._events) if one.replica == replica), None)
        is_same = newest is not None and (newest.kind is kind or {newest.kind, kind} <= LOSSES)
        return newest if is_same else None

    def _forget(self, replica: str) -> None:
        event = self._lost.pop(replica)
        owed = self._owed.get(event.pool, deque())
        self._owed[event.pool] = deque(one for one in owed if one.id != event.id)

    def _add(
        self, at: float, kind: EventKind, pool: str, replica: str, text: str, streams: int = 0, tokens: int = 0
    ) -> ClusterEvent:
        self._last_id += 1
        event = ClusterEvent(self._last_id, at, kind, pool, replica, text, streams, tokens)
        self._events.append(event)
        self._rows.write(event.id, self._events)
        return event


def _event(row: dict[str, Any]) -> ClusterEvent:
    return ClusterEvent(**{**row, "kind": EventKind(row["kind"])})


def _is_rank(name: str) -> bool:
    """Whether this is the name of a group's rank, for example `k3jx9a.r0`; Serve's own names have no dot."""
    return "." in name
