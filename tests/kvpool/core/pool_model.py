"""A pool of memory servers in virtual time: real ledgers, roster, ring and shares of quotas, but no bytes and no wire.

The content of an entry follows from its key, so that every read can be checked.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product

from serving.ids import BlockHash, NodeId
from serving.kvpool.core.batch_move import BatchMove, MovedBatch
from serving.kvpool.core.entry import Found, Kind, LoadFromSsd, Order, Space, Spill
from serving.kvpool.core.ledger_answers import found_in_dram, ledger_answer
from serving.kvpool.core.memory_manager import EntryView, ManagerSettings, MemoryManager
from serving.kvpool.core.messages import Promote, Promoted
from serving.kvpool.core.migration_plan import MoveTargets, planned_batches
from serving.kvpool.core.operation import PoolAnswer, PoolAsk, PoolEffect, PoolPost, PoolRead, PoolWrite, PoolWritten
from serving.kvpool.core.ring import HashRing, ring_of
from serving.kvpool.core.roster import SEAT_S, PoolRoster
from serving.values.pool_view import EMPTY_VIEW, NamespaceRecord, PoolView, ServerRecord, ServerState, server_quotas
from tests.kvpool.core.ledger_driver import PAGE, LedgerDriver, Name

SLOTS = ("a", "b", "c", "d")
SPACES = (Space("red", "small"), Space("red", "large"), Space("blue", "small"))
PAGES = {"small": 1, "large": 3}
HASHES = [BlockHash(blake2b(bytes([i]), digest_size=16).digest()) for i in range(10)]
KEYS: list[Name] = list(product(SPACES, HASHES))
CONTENT = {key: number for number, key in enumerate(KEYS, start=1)}
EXPIRY_S = 5.0
RAMP_S = 8.0
LEASE_S = 5.0
WRITE_LEASE_S = 10.0
MIGRATOR = 9


def nbytes_of(key: Name) -> int:
    return PAGES[key[0].layout] * PAGE


def small_settings(
    slabs: int, ssd_pages: int, write_through: bool, water: tuple[float, float], max_spills: int
) -> ManagerSettings:
    """Settings of servers with a few pages."""
    return ManagerSettings(
        capacity_bytes=slabs * 4 * PAGE,
        base_offset=PAGE,
        slab_bytes=4 * PAGE,
        ssd_bytes=ssd_pages * PAGE,
        high_water=water[0],
        low_water=water[1],
        write_through=write_through,
        lease_s=LEASE_S,
        write_lease_s=WRITE_LEASE_S,
        max_spills=max_spills,
    )


class Server:
    """One process of a memory server.

    Attributes:
        may_hold: entries that it received and was not told to delete, present or not.
        shares: of quotas, as it received them. ceilings: the limit of a namespace that exceeds its share.
    """

    def __init__(self, name: str, incarnation: int, now: float, driver: LedgerDriver) -> None:
        self.name = name
        self.incarnation = str(incarnation)
        self.born = now
        self.driver = driver
        self.manager = driver.manager
        self.state = ServerState.ACTIVE
        self.silent = False
        self.may_hold: set[Name] = set()
        self.shares: dict[str, int] = {}
        self.ceilings: dict[str, int] = {}

    def record(self, now: float) -> ServerRecord:
        capacity = self.manager.settings.capacity_bytes
        place = (NodeId("n"), "host", 1, "segment", 1, capacity)
        return ServerRecord(self.name, self.incarnation, *place, self.state, now - self.born)

    @property
    def held(self) -> dict[Name, EntryView]:
        return {(view.space, view.hash): view for view in self.manager.entries()}

    def used(self, namespace: str) -> int:
        usage = self.manager.usage().get(namespace)
        return usage.dram_bytes + usage.ssd_bytes if usage else 0

    def set_shares(self, shares: Mapping[str, int]) -> None:
        self.shares = dict(shares)
        self.manager.set_quotas(shares)
        self.ceilings = {namespace: self.used(namespace) for namespace in shares}

    def work(self, name: Name, ok: bool, now: float) -> None:
        """The next piece of disk work for one name."""
        order = self.driver.waiting[name][0]
        namespace = order.space.namespace
        before = self.used(namespace)
        self.driver.do_one(name, ok, now)
        share = self.shares.get(namespace)
        if share is not None and self.used(namespace) > max(before, share):
            # The one way to grow without a request: it was used on its way to SSD, and has a copy in each tier now.
            assert isinstance(order, Spill)
            assert self.held[name].in_dram
            assert self.held[name].on_ssd
            self.ceilings[namespace] = self.used(namespace)

    def work_all(self, now: float) -> None:
        while names := self.driver.names():
            for name in names:
                self.work(name, True, now)

    def tick(self, now: float) -> None:
        self.manager.tick(now)
        self.driver.collect()
        for namespace, share in self.shares.items():
            # A quota that shrank, or copies as above: only blocks in use may exceed it from now on.
            idle = [view for view in self.held.values() if view.space.namespace == namespace and not self._in_use(view)]
            assert self.used(namespace) <= share or not idle

    def check(self) -> None:
        """Check that ledger, memory and files agree, without foreign entries and without exceeded limits."""
        self.manager.check()
        self.driver.collect()
        held = self.held
        assert held.keys() <= self.may_hold, "an entry that was never put here, or was deleted"
        for key, view in held.items():
            assert (view.checksum, view.nbytes) == (CONTENT[key], nbytes_of(key))
            assert not view.in_dram or self.driver.read(view.offset, view.nbytes) == {CONTENT[key]}
        assert all(file == (CONTENT[key], nbytes_of(key)) for key, file in self.driver.files.items())
        if not self.driver.waiting:
            assert self.driver.files.keys() == {key for key, view in held.items() if view.on_ssd}
        for namespace, share in self.shares.items():
            used = self.used(namespace)
            assert used <= max(share, self.ceilings[namespace]), "a namespace grew beyond its share"
            self.ceilings[namespace] = used

    def _in_use(self, view: EntryView) -> bool:
        orders: list[Order] = list(self.driver.waiting.get((view.space, view.hash), ()))
        return view.leased or any(isinstance(o, Spill | LoadFromSsd) and o.version == view.version for o in orders)


@dataclass
class Writing:
    """A reservation whose client is still copying. `forgotten` = its namespace was deleted since."""

    server: Server
    key: Name
    version: int
    offset: int
    client: int
    until: float
    forgotten: bool = False

    @property
    def mark(self) -> int:
        """Content of the extent during the copy: half a block."""
        return -self.version


@dataclass
class Reading:
    """A lease. `excused` = its entry may be missing: the disk failed, or its namespace was deleted."""

    server: Server
    key: Name
    found: Found
    client: int
    until: float
    excused: bool = False


class Pool:
    """All servers, and the shared view of them.

    Attributes:
        disks: files by slot; they outlive processes.
        up: running processes, by name.
        heard: time of the last message of each listed server.
        seats: until when a slot keeps the full share of its keys, for any process.
        remembered: slots whose next process need not start with a small share.
        shares: of quotas, as last sent to each server.
        stale: the previous ring, which slow clients still use.
        seen: events so far, so that a test can assert its coverage.
    """

    def __init__(self, settings: ManagerSettings) -> None:
        self.settings = settings
        self.now = 100.0
        self.roster = PoolRoster(EXPIRY_S, RAMP_S)
        self.quotas: dict[str, int] = {}
        self.disks: dict[str, dict[Name, tuple[int, int]]] = {slot: {} for slot in SLOTS}
        self.up: dict[str, Server] = {}
        self.view: PoolView = EMPTY_VIEW
        self.ring: HashRing = ring_of(EMPTY_VIEW)
        self.stale = self.ring
        self.heard: dict[str, float] = {}
        self.seats: dict[str, float] = {}
        self.remembered: set[str] = set()
        self.shares: dict[str, dict[str, int]] = {}
        self.starts = 0
        self.seen: Counter[str] = Counter()

    # Processes

    def start(self, slot: str, told_before: bool) -> None:
        """A process takes a slot, with the files of its predecessor on disk.

        Args:
            told_before: it has its shares of the quotas before it reads the files.
        """
        self.now += 0.25
        self.starts += 1
        files = self.disks[slot]
        manager = MemoryManager(self.settings, first_version=self.starts * 1_000_000)
        server = Server(slot, self.starts, self.now, LedgerDriver(manager, files))
        if told_before:
            server.set_shares(self.shares.get(slot, {}))
        for (space, hash), (content, nbytes) in list(files.items()):
            version = manager.restore(space, hash, Kind.CONTEXT, nbytes, content, 0.0, self.now)
            self.seen["restored"] += version is not None
        server.may_hold = set(files)
        server.check()
        self.up[slot] = server
        self.look()
        weights = {s.record.name: s.weight for s in self.view.servers}
        if self.seats.get(slot, self.now) > self.now:
            assert weights[slot] == 1, "nobody looks for what a replacement has on disk"
            self.seen["replaced"] += 1
        elif slot not in self.remembered and any(weights[name] >= 1 for name in weights.keys() & self.seats.keys()):
            assert weights[slot] < 1, "a newcomer has its full share at once"
            self.seen["newcomer"] += 1
        self.remembered.add(slot)

    def leave(self, name: str) -> None:
        """A server says goodbye and ends; its remaining memory is lost."""
        server = self.up.pop(name)
        self.roster.withdraw(name, server.incarnation, self.now)
        self.heard.pop(name, None)
        if name in self.ring.draining:
            self.remembered.discard(name)
        self.look()

    # Time and knowledge

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for server in self.up.values():
                server.tick(self.now)
            self.look()

    def look(self) -> None:
        """All servers announce themselves and receive the new view."""
        for name, server in self.up.items():
            if not server.silent:
                assert self.roster.announce(server.record(self.now), self.now)
                self.heard[name] = self.now
                if server.state is ServerState.DRAINING:
                    self.seats.pop(name, None)
                elif self.now - server.born > RAMP_S:
                    self.seats[name] = self.now + SEAT_S
        view = self.roster.view(self.now, [NamespaceRecord(name, quota) for name, quota in self.quotas.items()])
        assert {s.record.name for s in view.servers} == {n for n, t in self.heard.items() if t + EXPIRY_S > self.now}
        if view.version == self.view.version:
            return
        ring = ring_of(view)
        self._check_change(self.view, self.ring, view, ring)
        self.view, self.ring, self.stale = view, ring, self.ring
        shares = server_quotas(view.namespaces, view)
        self.shares |= shares
        for name in shares.keys() & self.up.keys():
            self.up[name].set_shares(shares[name])
        for namespace, quota in self.quotas.items():
            parts = [of_server[namespace] for of_server in shares.values() if namespace in of_server]
            assert quota - len(parts) <= sum(parts) <= quota or not (quota and parts)

    @property
    def listed(self) -> set[str]:
        """Servers of the view; some may be dead."""
        return {server.record.name for server in self.view.servers}

    def holders(self, key: Name) -> set[str]:
        return {name for name, server in self.up.items() if key in server.held}

    def _check_change(self, old: PoolView, old_ring: HashRing, new: PoolView, new_ring: HashRing) -> None:
        """Assert that entries found before are found afterwards, as far as guaranteed."""
        before = {s.record.name: s.weight for s in old.servers}
        after = {s.record.name: s.weight for s in new.servers}
        grown = {name for name in after if after[name] > before.get(name, 0.0)}
        full = {name for name in grown if after[name] >= 1}
        stay = {name for name in after if after[name] >= before.get(name, 0.0)}
        shrunk = any(0 < after[name] < before.get(name, 0.0) for name in after)
        self.seen["grown"] += bool(grown)
        self.seen["died"] += bool(before.keys() - after.keys())
        for key in CONTENT:
            readers = old_ring.readers(key[1])
            holders = self.holders(key) & set(readers) & after.keys()
            promised: set[str] = set()
            if not grown and not shrunk:  # servers died, left or started to drain: all others are queried as before
                promised = holders
            else:
                primary = readers[:1]
                settled = [name for name in readers if before[name] >= 1][:1]
                promised |= {name for name in primary if before[name] > 0 and len(grown - {name}) <= 1}
                promised |= {name for name in settled if not full - {name}}
                promised &= holders & stay
            assert promised <= set(new_ring.readers(key[1])), f"some of {promised} hold {key} and are not asked"

    # Migration

    def settle(self, name: str, leaving: bool = False) -> int:
        """Move entries that belong to other servers.

        Args:
            leaving: all entries move, even while the view still gives this server a share.
        Returns: entries left behind: in use, lost on the way to memory, or refused by their owner.
        """
        home = self.up[name]
        others = tuple(one for one in self.view.servers if one.record.name != name)
        ring = ring_of(replace(self.view, servers=others)) if leaving else self.ring
        strays = [view for view in home.held.values() if ring.primary(view.hash) != name]
        left = len(strays)
        for batch in planned_batches(strays, lambda one: -one.last_use, self.settings.capacity_bytes):
            done = self._move(home, batch, ring)
            left -= len(done.moved) + done.absent
            self.seen["moved"] += len(done.moved)
        return left

    def _move(self, home: Server, batch: Sequence[EntryView], ring: HashRing) -> MovedBatch[EntryView]:
        targets = MoveTargets(ring, home.name)
        owners = {view: self.up.get(targets.target(view) or "") for view in batch}
        leased = {view.version for view in home.held.values() if view.leased}
        move = BatchMove(home.name, batch, lambda view: owner.name if (owner := owners[view]) else None, self.now + 5.0)
        queue = deque(move.start(self.now))
        while queue:
            queue.extend(self._carry_out(move, home, queue.popleft()))
        assert move.result is not None
        for view, owner in owners.items():
            if owner is not None and (key := (view.space, view.hash)) in owner.held:
                owner.may_hold.add(key)
        for view in move.result.moved:
            assert view.version not in leased
            home.may_hold.discard((view.space, view.hash))
        return move.result

    def _carry_out(self, move: BatchMove[EntryView], home: Server, effect: PoolEffect) -> Sequence[PoolEffect]:
        assert not isinstance(effect, PoolRead)
        server = self.up[effect.server]
        if isinstance(effect, PoolWrite):
            copies = [(grant, move.ready[index][1]) for index, grant in effect.grants]
            for grant, found in copies:
                assert home.driver.holds(found)
                server.driver.write(grant.offset, found.nbytes, found.checksum)
            return move.on(PoolWritten(server.name, [found.checksum for _, found in copies]), self.now)
        assert isinstance(effect, PoolAsk | PoolPost)
        answer = ledger_answer(server.manager, effect.message, MIGRATOR, self.now)
        if isinstance(effect.message, Promote):
            home.work_all(self.now)
            answer = Promoted(tuple([found_in_dram(home.manager, version) for version in effect.message.versions]))
        return move.on(PoolAnswer(server.name, answer), self.now) if isinstance(effect, PoolAsk) else ()
