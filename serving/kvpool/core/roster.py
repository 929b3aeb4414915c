"""Roster of the pool: makes one view of the memory servers that announce themselves about once a second.

Its state need not be saved: a lost roster is complete again after one round of announcements. It decides three things.

*The share of a new server.* Its weight grows from 1/8 to 1 in eight steps over `ramp_s`. Otherwise every new block of
its share would be written to one machine at once, and a pool that doubles could not find half of its keys. Servers that
start within a few seconds of the oldest one get their full share at once, because the pool is still empty.

*The share of a replacement.* It has the dead server's name and SSD folder, and therefore also its age: it owns its keys
at once, because its folder holds their blocks and readers would not look for them on other servers. Without an SSD tier
that costs no hit: those blocks are lost with their server, for any owner of the keys.

*Two servers with one name.* The one that started later is valid: it got the name because the other one was considered
dead. The other one is refused while the valid one is alive.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from serving.ids import NodeId
from serving.values.pool_view import NamespaceRecord, PoolView, ServerRecord, ServerState, ViewServer

EXPIRY_S = 5.0
"""A server that has not announced itself for so long is removed."""

STEPS = 8
"""Each step moves a new server 1/8 of its share: little enough that the hit rate hardly notices."""

FOUNDING_S = 10.0
"""Replicas that are started together listen within a few seconds of each other."""

SEAT_S = 600.0
"""How long the name of a server that vanished keeps its age: what its SSD folder holds is worth less every minute."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A server, and what the roster concluded of it."""

    record: ServerRecord
    expires: float
    born: float
    """When this process started to serve."""
    started: float
    """When the first of the successive processes with this name started to serve."""


class PoolRoster:
    """Live servers. The caller passes the time, which never decreases and has no meaning outside this process."""

    def __init__(self, expiry_s: float = EXPIRY_S, ramp_s: float = 30.0) -> None:
        """
        Args:
            expiry_s: a server that is silent for so long is removed.
            ramp_s: how long a new server takes to reach its full share; 0 = it has it at once.
        """
        self._expiry_s = expiry_s
        self._ramp_s = ramp_s
        self._members: dict[str, _Member] = {}
        self._seats: dict[str, tuple[float, float]] = {}
        """Name of a server that vanished -> (started, until)."""
        self._refused: dict[tuple[str, str], float] = {}
        """(name, incarnation) of a server that withdrew or was superseded -> until."""
        self._lost: frozenset[NodeId] = frozenset()

    def announce(self, record: ServerRecord, now: float) -> bool:
        """Add or refresh a server.

        Returns: False if it is refused: another one has its name, its node is lost, or it has withdrawn.
        """
        self._expire(now)
        if record.node in self._lost or (record.name, record.incarnation) in self._refused:
            return False
        born = now - record.uptime_s
        member = self._members.get(record.name)
        if member is None:
            started = min(born, self._seats.pop(record.name, (born, now))[0])
        elif member.record.incarnation == record.incarnation:
            # An announcement that took longer makes a server look younger than it is: the earliest birth is right.
            born = min(born, member.born)
            started = min(born, member.started)
        elif born < member.born:
            self._refuse(record.name, record.incarnation, now)
            return False
        else:
            self._refuse(record.name, member.record.incarnation, now)
            started = member.started
        self._members[record.name] = _Member(record, now + self._expiry_s, born, started)
        return True

    def withdraw(self, name: str, incarnation: str, now: float) -> bool:
        """Remove a server that leaves; announcements of it that are still on their way are refused.

        The age of a draining server is forgotten, so that its name starts young again.

        Returns: whether it was in the roster.
        """
        self._expire(now)
        self._refuse(name, incarnation, now)
        member = self._members.get(name)
        if member is None or member.record.incarnation != incarnation:
            return False
        self._vacate(name, now)
        return True

    def lose(self, nodes: frozenset[NodeId], now: float) -> None:
        """Set the nodes that the cluster has declared dead. Servers there are removed as if they had died."""
        self._lost = nodes
        for name in [name for name, member in self._members.items() if member.record.node in nodes]:
            self._vacate(name, now)

    def view(self, now: float, namespaces: Sequence[NamespaceRecord] = ()) -> PoolView:
        """The pool at this moment. Its version follows from its content alone: equal pools have equal versions.

        Args:
            namespaces: handed on, by name.
        """
        self._expire(now)
        weights = self._weights(now)
        servers = tuple(ViewServer(self._members[name].record, weights[name]) for name in sorted(weights))
        tenants = tuple(sorted(namespaces, key=lambda record: record.name))
        return PoolView(_version(servers, tenants), servers, tenants)

    def next_change(self, silent: Collection[str], now: float) -> float | None:
        """When the view changes by time alone: the next step of a ramp, or the expiry of a silent server.

        Args:
            silent: servers that will not announce themselves again.
        """
        times = [one.expires for name, one in self._members.items() if name in silent]
        for member in self._new_members(now):
            step = _step(now - member.started, self._ramp_s)
            if step < STEPS:
                times.append(member.started + step * self._ramp_s / STEPS)
        return min(times, default=None)

    def _weights(self, now: float) -> dict[str, float]:
        weights = {name: float(m.record.state is ServerState.ACTIVE) for name, m in self._members.items()}
        for member in self._new_members(now):
            weights[member.record.name] = _step(now - member.started, self._ramp_s) / STEPS
        return weights

    def _new_members(self, now: float) -> list[_Member]:
        """Active servers that did not start together with the oldest one."""
        active = [one for one in self._members.values() if one.record.state is ServerState.ACTIVE]
        founded = min((one.started for one in active), default=now)
        return [one for one in active if one.started - founded > min(FOUNDING_S, self._ramp_s)]

    def _refuse(self, name: str, incarnation: str, now: float) -> None:
        self._refused[name, incarnation] = now + self._expiry_s

    def _vacate(self, name: str, since: float) -> None:
        member = self._members.pop(name)
        if member.record.state is ServerState.ACTIVE:
            self._seats[name] = (member.started, since + SEAT_S)

    def _expire(self, now: float) -> None:
        for name, since in [(name, m.expires) for name, m in self._members.items() if m.expires <= now]:
            self._vacate(name, since)
        self._seats = {name: seat for name, seat in self._seats.items() if seat[1] > now}
        self._refused = {key: until for key, until in self._refused.items() if until > now}


def _step(age_s: float, ramp_s: float) -> int:
    """1 to `STEPS`: the first step at once, the last after 7/8 of the ramp."""
    step = int(age_s / ramp_s * STEPS) + 1 if ramp_s > 0 else STEPS
    return min(max(step, 1), STEPS)


def _version(servers: Sequence[ViewServer], namespaces: Sequence[NamespaceRecord]) -> str:
    content = [(f"{s.weight:.6f}", replace(s.record, uptime_s=0.0, facts={})) for s in servers]
    text = repr((content, list(namespaces)))
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8, person=b"pool view").hexdigest()
