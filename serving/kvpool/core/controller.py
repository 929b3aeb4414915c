"""The pool's controller: the roster of memory servers and namespaces, and when its view is complete.

All of its state can be rebuilt: servers announce themselves every second and return the namespaces that they last
received. A new controller therefore waits for one round of announcements before it publishes a view, unless a store has
kept the members; an earlier view would lack half of the pool. The caller passes the time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from serving.errors import PoolError
from serving.ids import NodeId
from serving.kvpool.core.roster import EXPIRY_S, PoolRoster
from serving.values.pool_view import DEFAULT_NAMESPACE, NamespaceRecord, PoolView, ServerRecord, is_namespace_name

# Storage of the pool controller's state: a port with two implementations, memory and Redis.
#
# The controller decides from its own memory and never waits for a store. It saves its whole state about once a second,
# so a store that was unreachable, or lost its data, is correct again after the next save. It loads only at its start.


@dataclass(frozen=True, slots=True)
class ControlState:
    """State that is kept.

    Args:
        session: the start of the system that wrote it.
        servers: as announced last, without facts.
        namespaces: with their quotas, by name.
    """

    session: str
    servers: tuple[ServerRecord, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()


class ControlStore(Protocol):
    """Where the state is kept."""

    def load(self) -> ControlState | None:
        """The saved state; None if there is none.

        Raises: PoolError if the store cannot be reached, or holds other data.
        """
        ...

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Keeps this state instead of any other.

        Args:
            ttl_s: servers that are not saved again within this time vanish from the store.
        Raises: PoolError if the store cannot be written now.
        """
        ...

    def close(self) -> None:
        """Ends the connection, if there is one."""
        ...


class EmbeddedStore:
    """Keeps the state in this process only: after its end the servers announce all of it again."""

    def __init__(self) -> None:
        self._state: ControlState | None = None

    def load(self) -> ControlState | None:
        """State that `save` was given last."""
        return self._state

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Keep the value in memory."""
        self._state = state

    def close(self) -> None:
        """Do nothing: there is no connection."""


# The pool's controller: the roster of memory servers and namespaces, and when its view is complete.

ROUND_S = 2.0
"""Twice the period of announcements: how long a new controller listens after the first one that it hears."""


@dataclass(frozen=True, slots=True)
class ControllerAnswer:
    """Answer to a server that announces itself.

    Args:
        accepted: False = another server has its name now; it should stop serving.
        view: the pool; None while the controller is too young to know: keep what you have.
    """

    accepted: bool
    view: PoolView | None


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Settings of a controller.

    Args:
        session: names this start of the system.
        directory: `embedded`, or the address of a Redis.
        expiry_s: a server that is silent for so long is removed.
        ramp_s: how long a new server takes to reach its full share of the ring.
        namespaces: of the configuration.
        founding: it is the first controller of this start of the system, so it does not wait for announcements.
    """

    session: str
    directory: str = "embedded"
    expiry_s: float = EXPIRY_S
    ramp_s: float = 30.0
    namespaces: tuple[NamespaceRecord, ...] = ()
    founding: bool = False


class PoolController:
    """Pure: no clock, no thread, no store. Not safe for threads; `ControllerHost` is."""

    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self._roster = PoolRoster(settings.expiry_s, settings.ramp_s)
        self._namespaces: dict[str, NamespaceRecord] = {}
        self._deleted: set[str] = set()
        self._configured = False
        self._first_report_at: float | None = None
        """When the first server was heard."""

    def announce(self, record: ServerRecord, namespaces: Iterable[NamespaceRecord], now: float) -> ControllerAnswer:
        """Take a server's announcement. An accepted server stays in the view for another expiry time.

        Args:
            namespaces: as the server last received them; the controller's own records take precedence.
        """
        return ControllerAnswer(self.hear(record, namespaces, now), self.view(now))

    def hear(self, record: ServerRecord, namespaces: Iterable[NamespaceRecord], now: float) -> bool:
        """Take an announcement without making a view: one view is enough for many announcements of one moment.

        Returns: whether the server is accepted.
        """
        if self._first_report_at is None:
            self._first_report_at = now
        accepted = self._roster.announce(record, now)
        self._merge(namespaces)
        return accepted

    def withdraw(self, name: str, incarnation: str, now: float) -> None:
        """Remove a server that leaves; ignored if another incarnation has its name."""
        self._roster.withdraw(name, incarnation, now)

    def lose(self, nodes: frozenset[NodeId], now: float) -> None:
        """Remove the servers of nodes that the cluster declared dead, and reject their announcements."""
        self._roster.lose(nodes, now)

    def view(self, now: float) -> PoolView | None:
        """The current pool, without expired servers; None while this controller's knowledge is incomplete."""
        if not self._knows(now):
            return None
        self._configure()
        return self._roster.view(now, self._records())

    def next_change(self, silent: Collection[str], now: float) -> float | None:
        """When the view changes by time alone; see `PoolRoster.next_change`."""
        return self._roster.next_change(silent, now)

    def set_namespace(self, record: NamespaceRecord) -> None:
        """Add a namespace, or change its quota and weight; overrides the configuration.

        Raises: PoolError if the name, quota or weight is invalid.
        """
        if not is_namespace_name(record.name) or record.quota_bytes < 0 or not record.weight > 0:
            raise PoolError(
                f"namespace {record.name!r} with a quota of {record.quota_bytes} bytes and weight {record.weight} "
                "is not valid"
            )
        file = self._terms(record.name)
        self._namespaces[record.name] = replace(
            record, over=None if file == (record.quota_bytes, record.weight) else file
        )
        self._deleted.discard(record.name)

    def delete_namespace(self, name: str) -> bool:
        """Remove a namespace and its quota from the view, even if servers still announce it. Its entries stay.

        Returns: whether it existed.
        """
        self._deleted.add(name)
        return self._namespaces.pop(name, None) is not None

    def state(self, now: float) -> ControlState:
        """State to save, without facts, which servers announce every second."""
        servers = self._roster.view(now).servers
        return ControlState(
            self._settings.session, tuple(replace(one.record, facts={}) for one in servers), self._records()
        )

    def restore(self, state: ControlState, now: float) -> None:
        """Take over saved state: all of it from the same start of the system, else only its namespaces.

        From an earlier start, a configured namespace follows the configuration, unless an operator changed it and the
        configuration is still the one that was overridden. Announcements and changes made since this start take
        precedence.

        After a restart within one start of the system the view is available at once; servers that died in between are
        in it until they expire.
        """
        if state.session != self._settings.session:
            self._merge(one for one in state.namespaces if one.over is not None and one.over == self._terms(one.name))
            self._configure()
        elif self._first_report_at is None and state.servers:
            for record in state.servers:
                self._roster.announce(record, now)
            self._first_report_at = now - ROUND_S
        self._merge(state.namespaces)

    def _knows(self, now: float) -> bool:
        return self._settings.founding or (self._first_report_at is not None and now - self._first_report_at >= ROUND_S)

    def _merge(self, records: Iterable[NamespaceRecord]) -> None:
        for record in records:
            if record.name not in self._namespaces and record.name not in self._deleted and self._stands(record):
                self._namespaces[record.name] = record

    def _stands(self, record: NamespaceRecord) -> bool:
        """Whether a record is valid: an operator's change holds until the configuration changes."""
        file = self._terms(record.name)
        return file is None or file in ((record.quota_bytes, record.weight), record.over)

    def _configure(self) -> None:
        """The configuration's namespaces come after what servers know: quotas may have been changed since the start."""
        if not self._configured:
            self._merge(self._settings.namespaces)
            self._configured = True

    def _terms(self, name: str) -> tuple[int, float] | None:
        """Quota and weight of a namespace by the configuration; None if that does not know it."""
        always = NamespaceRecord(DEFAULT_NAMESPACE)
        known = (one for one in (*self._settings.namespaces, always) if one.name == name)
        return next(((one.quota_bytes, one.weight) for one in known), None)

    def _records(self) -> tuple[NamespaceRecord, ...]:
        claims = {one.name: one.claims for one in self._settings.namespaces}
        records = [self._namespaces[name] for name in sorted(self._namespaces)]
        return tuple(replace(record, claims=claims.get(record.name, record.claims)) for record in records)
