"""Events of instances and hosts, beside the decisions: one bounded ring of events, for people.

Two sources. A gateway's notice comes at once and knows how many streams went elsewhere; several gateways that lose the
same instance are one event, which sums up. A look at the cluster comes up to a second later and knows what gateways
cannot: a memory server that ended, a host that is gone, the replica that serves in place of a lost one.
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
"""A replica that serves later than this after a loss is no replacement of what was lost."""


class EventKind(Enum):
    """Sort of event, for filters and colours; the text says it in words."""

    DIED = "died"
    FROZEN = "frozen"
    """Silent, or its engine at one step, for longer than `[health]` allows."""
    LEFT = "left"
    """It was asked to."""
    BACK = "back"
    """Taken for dead, and alive."""
    REPLACED = "replaced"
    STARTED = "started"
    HOST_LOST = "host lost"
    POISON = "poison"
    """A request that took down the instances which worked on it is not tried again."""
    AUDIT = "audit"
    """Somebody had the KV-cache pool compare its ledgers, memory and disk."""
    DEPLOYED = "deployed"
    """A stage of a deployment begins, or its last one has ended."""


_PREFIX = "events/"
LOSSES = {EventKind.DIED, EventKind.FROZEN}


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event.

    Args:
        id: counts up and does not repeat, not even after the board was started again.
        at: seconds since 1970.
        replica: Serve's unique name; of a host that is lost its name.
        streams: that went on elsewhere; `tokens`: output tokens that these had by then and did not lose.
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
        """Ready for JSON."""
        return {
            "id": self.id, "at": self.at, "kind": self.kind.value, "pool": self.pool, "replica": self.replica,
            "text": f"{self.text}{self._moved()}", "streams": self.streams, "tokens": self.tokens,
        }  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """Ready for JSON, to be made again of."""
        return {**asdict(self), "kind": self.kind.value}

    def _moved(self) -> str:
        if not self.streams:
            return ""
        moved = f"; {self.streams} stream{'s' * (self.streams > 1)} moved"
        return f"{moved}, {self.tokens:,} tokens resumed" if self.kind in LOSSES else moved


class EventLog:
    """The ring, and which replicas are lost now. Time is passed in.

    Args:
        first_id: of the first event: seconds since 1970, since there are fewer events than seconds.
        kept: where events are kept, and those of the board before this one are; None = nowhere.
    Attributes:
        warnings: about events that cannot be read.
    """

    def __init__(self, first_id: int, kept: KeyedValues | None = None) -> None:
        self._rows = KeptRows(kept, _PREFIX)
        self._events = deque(self._rows.read(_event), maxlen=KEPT_EVENTS)
        self.warnings = self._rows.warnings
        self._last_id = max(first_id - 1, self._events[-1].id if self._events else 0)
        self._lost: dict[str, ClusterEvent] = {}
        """By replica, until Serve does not list it any more."""
        self._owed: dict[str, deque[ClusterEvent]] = {}
        """By pool: losses that nothing serves in place of yet."""

    def hear(self, notice: InstanceNotice, now: float) -> None:
        """A gateway's notice."""
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

    def observe(self, before: ClusterSnapshot, sight: ClusterSnapshot) -> None:
        """Compare two looks."""
        if not before.at:
            return
        here = {node.node for node in sight.nodes}
        for node in before.nodes:
            if node.node in sight.left_nodes:
                self._add(sight.at, EventKind.LEFT, "", node.name, "Ray has taken the host back, or it was stopped")
            elif node.node not in here:
                text = f"{node.npus} NPUs and {node.memory_mib / 1024:g} GiB of UB memory went with it"
                self._add(sight.at, EventKind.HOST_LOST, "", node.name, text)
        for pool, seen in sight.deployments.items():
            if pool in before.deployments:
                self._compare(pool, before.deployments[pool], seen, sight.at)
        listed = {replica.name for seen in sight.deployments.values() for replica in seen.replicas}
        for name in [name for name in self._lost if _is_rank(name)]:
            self._look_for_rank(name, before, sight)
        self._lost = {name: event for name, event in self._lost.items() if name in listed or _is_rank(name)}

    def started(self, pool: str, replica: str, text: str, now: float) -> None:
        """A replica serves for the first time; the text says after how long."""
        self._add(now, EventKind.STARTED, pool, replica, text)

    def deployed(self, notice: DeploymentNotice, now: float) -> None:
        """A stage of a deployment begins, or the deployment ends."""
        text = f"{notice.author} deploys configuration {notice.configuration}: {notice.stage}"
        self._add(now, EventKind.DEPLOYED, "", "", text)

    def lost(self) -> Mapping[str, EventKind]:
        """How each replica was lost that Serve still lists, by name."""
        return {name: event.kind for name, event in self._lost.items()}

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT_EVENTS) -> list[ClusterEvent]:
        """Events with an id above `after`, newest first."""
        found = [e for e in reversed(self._events) if e.id > after and pool in (None, e.pool)]
        return found[:limit]

    def _compare(self, pool: str, before: SeenDeployment, seen: SeenDeployment, now: float) -> None:
        served = {one.name for one in before.replicas if one.phase is ReplicaPhase.SERVING}
        listed = {one.name for one in seen.replicas}
        if seen.target >= before.target:  # else it may have left, as it was asked to
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
            owed.popleft()  # nobody asks for it any more

    def _look_for_rank(self, name: str, before: ClusterSnapshot, sight: ClusterSnapshot) -> None:
        """A rank is replaced by its shell, in its own name."""
        lost, old, new = self._lost[name], before.members.get(name), sight.members.get(name)
        if new is not None and (old is None or old.incarnation != new.incarnation):
            self._forget(name)
            text = f"serves again, {sight.at - lost.at:.1f} s after the loss"
            self._add(sight.at, EventKind.REPLACED, lost.pool, name, text)
        elif sight.at - lost.at > REPLACED_WITHIN_S:
            self._forget(name)

    def _lose(self, event: ClusterEvent) -> None:
        self._lost[event.replica] = event
        if _is_rank(event.replica):
            return  # its shell owes it, not Serve
        self._owed.setdefault(event.pool, deque()).append(event)

    def _known(self, kind: EventKind, replica: str) -> ClusterEvent | None:
        """The replica's newest event if another gateway has told of the same end, or Serve has stopped listing it."""
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
    """Whether it is the name of a rank of a group, for example `k3jx9a.r0`; Serve's own have no dot."""
    return "." in name
