"""Members of the pool in virtual time: servers that join, ramp up, drain, freeze, crash and are replaced.

The pool's own controller decides which servers are in the view with which share, and when that changes; this module
calls it at those times.

After every change of the ring each server looks for entries that another one should have now. While there are any, the
pool is not `steady`, and a block may be on any of its `readers`; otherwise only on its primary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

from serving.config.kvcache import KvCacheConfig
from serving.errors import ConfigError
from serving.kvpool.core.controller import ControlSettings, PoolController
from serving.kvpool.core.memory_manager import ManagerSettings
from serving.kvpool.core.ring import HashRing, ring_of
from serving.kvpool.core.ssd_restore import KeptFile, restore_files
from serving.values.pool_view import EMPTY_VIEW, NamespaceRecord, ServerState, server_quotas
from serving.virtual.memory_migration import Migration
from serving.virtual.memory_server import VirtualServer
from serving.virtual.memory_silence import SilentServers
from serving.virtual.memory_values import PoolCounters, ServerFacts

_JUST_AFTER_S = 1e-6
"""A change of the view is taken a moment late, so that rounding cannot make it early."""


class Members:
    """The servers of one pool, and the timed events in their lives.

    Attributes:
        up: servers that respond, by name; draining ones too.
        ring: of the latest view.
        steady: every entry is with its primary.
        changes: increases whenever `up`, `ring` or `steady` may have changed.
        silent: servers that are frozen, as clients notice them.
    """

    def __init__(
        self,
        config: KvCacheConfig,
        settings: ManagerSettings,
        quotas: Mapping[str, int],
        migration_bytes_per_s: float,
        ssd_bytes_per_s: float,
    ) -> None:
        self.up: dict[str, VirtualServer] = {}
        self.ring = HashRing(())
        self.steady = True
        self.changes = 0
        self.timers = ActionTimers()
        self._config = config
        self._settings = settings
        self._migration_bytes_per_s = migration_bytes_per_s
        self._ssd_bytes_per_s = ssd_bytes_per_s
        namespaces = tuple(NamespaceRecord(name, nbytes) for name, nbytes in quotas.items())
        self._controller = PoolController(
            ControlSettings("simulated", ramp_s=config.ramp_s, namespaces=namespaces, founding=True)
        )
        self._view = EMPTY_VIEW
        self._migrations: dict[str, Migration] = {}
        self._wake = 0.0
        self.silent = SilentServers()
        self._lost: dict[str, Sequence[KeptFile]] = {}
        self._frozen: dict[str, tuple[VirtualServer, Migration]] = {}
        self._incarnations = 0
        self._gone = PoolCounters()

    # Joining and leaving

    def start(self, count: int, now: float) -> None:
        """Start the first servers of the pool, at full share at once."""
        for _ in range(count):
            self._join(self._free_name(), now)
        self._review(now)

    def add(self, now: float, name: str | None = None) -> str:
        """Start one server. A replacement of a lost one, by its name, takes over its share and its SSD folder.

        Args:
            name: None = that of the server lost first, if any; else the first free one.
        Returns: its name.
        Raises: ConfigError if a server of this name exists.
        """
        name = name or next(iter(self._lost), None) or self._free_name()
        if name in self.up or name in self._frozen:
            raise ConfigError(f"there is a memory server {name} already")
        self._join(name, now)
        self._review(now)
        return name

    def remove(self, name: str, now: float) -> None:
        """Drain a server; it has `drain_s` to hand its entries to the others.

        Raises: ConfigError if there is no such server, or it drains already.
        """
        server = self._server(name)
        if server.state is ServerState.DRAINING:
            raise ConfigError(f"memory server {name} is leaving already")
        server.state = ServerState.DRAINING
        server.leave_by = now + self._config.drain_s
        self.timers.at(server.leave_by, partial(self._leave, server))
        self._review(now)

    def lose(self, name: str, now: float, keeps_ssd: bool) -> None:
        """Kill a server. Until the controller drops it, its blocks are misses and writes to it are dropped.

        Args:
            keeps_ssd: its replacement finds its SSD folder.
        Raises: ConfigError if there is no such server.
        """
        frozen = self._frozen.pop(name, None)
        server = self._server(name) if frozen is None else frozen[0]
        self._announce(now)
        self._lost[name] = server.kept() if keeps_ssd else ()
        if frozen is None:
            self._end(server)
        else:
            del self.silent.frozen[name]
            self._gone += self._counted(*frozen)
        self._wake_up(now)

    def freeze(self, name: str, now: float, until: float) -> int:
        """Suspend a server's process: it neither responds nor announces itself.

        Args:
            until: when it resumes; infinite = never.
        Returns: its incarnation.
        Raises: ConfigError if there is no such server.
        """
        server = self._server(name)
        self._announce(now)
        self._frozen[name] = server, self._stop(server)
        self.silent.frozen[name] = until
        self._wake_up(now)
        return server.incarnation

    def thaw(self, name: str, incarnation: int, now: float) -> None:
        """Resume a frozen server with its entries. Ignored if that process no longer exists."""
        if not self.is_frozen(name, incarnation):
            return
        server, migration = self._frozen.pop(name)
        del self.silent.frozen[name]
        server.up, server.tick_at = True, None
        in_order = sorted([*self.up.values(), server], key=lambda one: one.incarnation)
        self.up.clear()
        self.up.update({one.name: one for one in in_order})
        self._migrations[name] = migration
        self.changes += 1
        if (due := server.disk_due) is not None:
            self.timers.at(max(now, due), partial(self._disk, server))
        self.work(server, now)
        if server.leave_by is not None:
            self.timers.at(max(now, server.leave_by), partial(self._leave, server))
        migration.resume(self.ring, now)
        self._review(now)
        self._go_on(migration, now)
        self._judge()

    def is_frozen(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation is frozen now."""
        return name in self._frozen and self._frozen[name][0].incarnation == incarnation

    def advance(self, now: float) -> None:
        """Run all events that are due by now, each at its own time."""
        timers = self.timers
        while timers.due <= now:
            time, action = timers.pop()
            action(time)

    # What a server's ledger asks for

    def work(self, server: VirtualServer, now: float) -> None:
        """Carry out a server's pending orders and schedule its next tick.

        Call it after any call that may have given orders or made memory short.
        """
        if not server.up:
            return  # it stands still
        idle = server.disk_due is None
        server.take_orders(now)
        if idle and (due := server.disk_due) is not None:
            self.timers.at(due, partial(self._disk, server))
        at = server.manager.next_tick(now)
        if at is not None and (server.tick_at is None or at < server.tick_at):
            server.tick_at = at
            self.timers.at(at, partial(self._tick, server))

    def _disk(self, server: VirtualServer, now: float) -> None:
        due = server.disk_due
        if not server.up or due is None or due > now:
            return
        server.end_disk_work(now)
        if (due := server.disk_due) is not None:
            self.timers.at(due, partial(self._disk, server))
        self.work(server, now)

    def _tick(self, server: VirtualServer, now: float) -> None:
        if server.up and server.tick_at == now:
            server.tick_at = None
            server.manager.tick(now)
            self.work(server, now)

    # The ring

    def _join(self, name: str, now: float) -> None:
        self._incarnations += 1
        server = VirtualServer(name, self._incarnations, self._settings, now, self._ssd_bytes_per_s)
        restore_files(server.manager, self._lost.pop(name, ()), now)
        self.up[name] = server
        work = self.work if self._settings.ssd_bytes else _no_work
        self._migrations[name] = Migration(server, self.up, work, self._migration_bytes_per_s)
        self.changes += 1

    def _announce(self, now: float) -> None:
        namespaces = self._view.namespaces
        for server in self.up.values():
            accepted = self._controller.hear(server.record(now), namespaces, now)
            assert accepted, f"{server.name} has a name that another server took later"

    def _wake_up(self, now: float) -> None:
        """Schedule a review for the next change of the view by time alone."""
        due = self._controller.next_change(self._lost.keys() | self._frozen.keys(), now)
        if due is not None and not now < self._wake <= due + _JUST_AFTER_S:
            self._wake = due + _JUST_AFTER_S
            self.timers.at(self._wake, self._review)

    def _review(self, now: float) -> None:
        """Adopt the controller's view if it has changed."""
        self._announce(now)
        view = self._controller.view(now)
        assert view is not None, "the founding controller knows the pool"
        self._wake_up(now)
        if view.version == self._view.version:
            return
        self._view = view
        self.ring = ring_of(view)
        self.silent.forget(self.listed)
        for name, shares in server_quotas(view.namespaces, view).items() if view.namespaces else ():
            if (server := self.up.get(name)) is not None:
                server.manager.set_quotas(shares)
                server.manager.tick(now)
                self.work(server, now)
        self.changes += 1
        for migration in self._migrations.values():
            migration.settle(self.ring, now)
            self._go_on(migration, now)
        self._judge()

    def _judge(self) -> None:
        """Update `steady`; routes are computed again if it, or the set of responding servers, has changed."""
        steady = not self.ring.draining and all(one.due is None for one in self._migrations.values())
        if steady != self.steady:
            self.steady = steady
            self.changes += 1

    # Migration

    def _go_on(self, migration: Migration, now: float) -> None:
        if migration.due is not None:
            self.timers.at(migration.due, partial(self._step, migration))
        elif migration.server.state is ServerState.DRAINING:
            self.timers.at(now, partial(self._leave, migration.server))

    def _step(self, migration: Migration, now: float) -> None:
        if migration.due != now:
            return  # another step is due instead
        migration.step(now)
        self._go_on(migration, now)
        self._judge()

    def _leave(self, server: VirtualServer, now: float) -> None:
        if not server.up:
            return
        self._controller.withdraw(server.name, str(server.incarnation), now)
        self._end(server)
        self._review(now)

    def _end(self, server: VirtualServer) -> None:
        self._gone += self._counted(server, self._stop(server))

    def _stop(self, server: VirtualServer) -> Migration:
        server.up = False
        del self.up[server.name]
        migration = self._migrations.pop(server.name)
        migration.due = None
        self.changes += 1
        self._judge()
        return migration

    # Knowledge

    def processes(self) -> Mapping[str, VirtualServer]:
        """Servers by name, including frozen ones."""
        return self.up if not self._frozen else self.up | {name: one[0] for name, one in self._frozen.items()}

    @property
    def listed(self) -> list[str]:
        """Names of the servers in the view."""
        return [one.record.name for one in self._view.servers]

    def leased(self, name: str) -> set[int]:
        """Versions that a server's own migration leases there."""
        return self._migrations[name].leased

    def counters(self) -> PoolCounters:
        """Sums of the servers' counters, including servers that no longer exist."""
        total = self._gone
        for name, server in self.up.items():
            total += self._counted(server, self._migrations[name])
        for frozen in self._frozen.values():
            total += self._counted(*frozen)
        return total

    def facts(self) -> tuple[ServerFacts, ...]:
        """The servers of the ring, by name; lost ones until the controller drops them."""
        return tuple(self._facts(one.record.name, one.weight) for one in self._view.servers)

    def memory_bytes(self) -> tuple[int, int]:
        """Used memory of the servers of the ring, and all of it."""
        names = [one.record.name for one in self._view.servers]
        managers = [self.up[name].manager for name in names if name in self.up]
        return sum([one.dram_used_bytes for one in managers]), sum([one.dram_capacity_bytes for one in managers])

    def _facts(self, name: str, weight: float) -> ServerFacts:
        server = self.up.get(name)
        if server is None:
            return ServerFacts(name, False, weight, 0, 0, 0, 0, 0, 0)
        stats = server.manager.stats()
        return ServerFacts(
            name,
            True,
            weight,
            stats.entries,
            stats.dram_used_bytes,
            stats.dram_capacity_bytes,
            stats.ssd_used_bytes,
            stats.ssd_capacity_bytes,
            self._migrations[name].left,
        )

    def _counted(self, server: VirtualServer, migration: Migration) -> PoolCounters:
        return server.counters() + PoolCounters(moved=migration.moved, moved_bytes=migration.moved_bytes)

    def _server(self, name: str) -> VirtualServer:
        server = self.up.get(name)
        if server is None:
            raise ConfigError(f"there is no memory server {name!r}; there are {', '.join(self.up) or 'none'}")
        return server

    def _free_name(self) -> str:
        taken = self.up.keys() | self._lost.keys() | self._frozen.keys()
        return next(name for number in range(len(taken) + 1) if (name := f"server-{number}") not in taken)


def _no_work(server: VirtualServer, now: float) -> None:
    """Do nothing: a ledger without an SSD tier gives no orders."""


# Future actions inside the pool, in total order: by time, then by when they were decided.

NEVER = float("inf")


class ActionTimers:
    """Actions with their times. Each is called with the time for which it was scheduled."""

    __slots__ = ("_heap", "_number", "due")

    def __init__(self) -> None:
        self.due = NEVER
        """When the first action is to be done."""
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    def at(self, time: float, action: Callable[[float], None]) -> None:
        """Schedule an action. It cannot be cancelled: the action itself checks whether it still applies."""
        self._number += 1
        heappush(self._heap, (time, self._number, action))
        self.due = self._heap[0][0]

    def pop(self) -> tuple[float, Callable[[float], None]]:
        """Remove and return the first action with its time. There must be one."""
        time, _number, action = heappop(self._heap)
        self.due = self._heap[0][0] if self._heap else NEVER
        return time, action
