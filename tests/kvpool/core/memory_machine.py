"""The memory manager against pages, files and readers: promised bytes are always found, whatever happens."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.ids import BlockHash
from serving.kvpool.core.entry import EntryTier, Found, GrantStatus, Kind, Space
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
from serving.kvpool.core.server_settings import ClaimSettings
from serving.kvpool.core.writers import MODEL_LEASE_S
from tests.kvpool.core.ledger_driver import PAGE, LedgerDriver

SPACES = [Space("red", "l1"), Space("red", "l2"), Space("blue", "l1")]
CLIENTS = st.integers(1, 3)
HASHES = st.integers(0, 9)
LUCK = st.integers(0, 3)
"""What ends much happens on 0 only, so that states grow old enough to be interesting."""
BASE = 10 * PAGE
SIZES = st.sampled_from([1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE, 9 * PAGE])


def name(index: int) -> BlockHash:
    return BlockHash(bytes([index]) * 16)


class MemoryMachine(RuleBasedStateMachine):
    """Writers, readers, mappers, a disk that sometimes fails, tenants with quotas, and restarts."""

    CLAIMS = ClaimSettings()

    @initialize(
        slabs=st.integers(1, 6),
        ssd_pages=st.sampled_from([0, 0, 4, 40, 400]),
        write_through=st.booleans(),
        eviction=st.sampled_from(["lru", "lfu", "fifo", "cost"]),
        water=st.sampled_from([(1.0, 1.0), (0.8, 0.4), (0.5, 0.5)]),
        max_spills=st.integers(1, 3),
    )
    def build(
        self,
        slabs: int,
        ssd_pages: int,
        write_through: bool,
        eviction: str,
        water: tuple[float, float],
        max_spills: int,
    ) -> None:
        self.settings = ManagerSettings(
            capacity_bytes=slabs * 4 * PAGE + PAGE,
            base_offset=BASE,
            slab_bytes=4 * PAGE,
            ssd_bytes=ssd_pages * PAGE,
            high_water=water[0],
            low_water=water[1],
            write_through=write_through,
            eviction=eviction,
            lease_s=5.0,
            write_lease_s=10.0,
            max_spills=max_spills,
            claims=self.CLAIMS,
            prefetch_share=0.5,
        )
        self.now = 100.0
        self.contents = 0
        self.seen: Counter[str] = Counter()
        self.quotas: dict[str, int] = {}
        self.start(LedgerDriver(MemoryManager(self.settings)))

    def start(self, driver: LedgerDriver) -> None:
        self.driver = driver
        self.manager = driver.manager
        self.writing: dict[int, tuple[int, Space, BlockHash, int, int, float]] = {}
        self.truth: dict[tuple[Space, BlockHash], int] = {}  # content last committed
        self.leases: dict[tuple[int, int], tuple[Found, float]] = {}  # client, version -> what it saw, until
        self.holds: dict[tuple[int, int], Found] = {}  # holder, version -> what it saw
        self.gone: set[int] = set()  # removed for a reason: leases do not keep them findable
        self.manager.set_quotas(self.quotas)

    # Writers

    @rule(
        space=st.sampled_from(SPACES),
        items=st.lists(st.tuples(HASHES, SIZES), min_size=1, max_size=4),
        client=CLIENTS,
        kind=st.sampled_from([Kind.CONTEXT, Kind.CONTEXT, Kind.MODEL]),
    )
    def reserve(self, space: Space, items: list[tuple[int, int]], client: int, kind: Kind) -> None:
        wanted = [(name(index), nbytes) for index, nbytes in items]
        grants = self.manager.reserve(space, wanted, client, self.now, kind)
        for (hash, nbytes), grant in zip(wanted, grants, strict=True):
            if grant.status is GrantStatus.GRANTED:
                assert grant.offset >= BASE
                assert grant.offset + nbytes <= BASE + self.settings.capacity_bytes
                self.contents += 1
                self.driver.write(grant.offset, nbytes, self.contents)
                until = self.now + (10.0 if kind is Kind.CONTEXT else MODEL_LEASE_S)
                self.writing[grant.version] = (client, space, hash, grant.offset, nbytes, until)
                self.truth.pop((space, hash), None)
            assert (grant.status is GrantStatus.TOO_LARGE) <= (nbytes > self.manager.stats().dram_capacity_bytes)
        granted = any(grant.status is GrantStatus.GRANTED for grant in grants)
        quota = self.quotas.get(space.namespace, 0)
        if granted and quota:
            usage = self.manager.usage()[space.namespace]
            assert usage.dram_bytes + usage.ssd_bytes <= quota

    @rule(
        space=st.sampled_from(SPACES),
        items=st.lists(st.tuples(HASHES, SIZES), min_size=1, max_size=6),
        client=CLIENTS,
        kind=st.sampled_from([Kind.CONTEXT, Kind.CONTEXT, Kind.MODEL]),
    )
    def store(self, space: Space, items: list[tuple[int, int]], client: int, kind: Kind) -> None:
        """Most writers finish at once."""
        before = len(self.writing)
        self.reserve(space, items, client, kind)
        for _ in range(len(self.writing) - before):
            self.commit(before, stranger=False)

    @precondition(lambda self: self.writing)
    @rule(which=st.integers(0, 100), stranger=st.booleans())
    def commit(self, which: int, stranger: bool) -> None:
        version = list(self.writing)[which % len(self.writing)]
        client, space, hash, offset, nbytes, until = self.writing[version]
        if stranger:
            assert not self.manager.commit(version, 1, client + 1, self.now)
            return
        del self.writing[version]
        (content,) = self.driver.read(offset, nbytes)
        assert content is not None
        done = self.manager.commit(version, content, client, self.now)
        assert done == (until > self.now and version not in self.gone)
        if done:
            self.truth[space, hash] = content

    @precondition(lambda self: self.writing)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        version = list(self.writing)[which % len(self.writing)]
        client = self.writing.pop(version)[0]
        self.manager.abort(version, client, self.now)
        self.manager.abort(version, client, self.now)

    # Readers

    @rule(
        which=st.lists(st.integers(0, 100), min_size=1, max_size=5),
        client=CLIENTS,
        lease_s=st.sampled_from([None, 1.0, 20.0]),
    )
    def lookup(self, which: list[int], client: int, lease_s: float | None) -> None:
        stored = list(self.truth) or [(SPACES[0], name(0))]
        space = stored[which[0] % len(stored)][0]
        hashes = [stored[index % len(stored)][1] for index in which]
        for hash, found in zip(hashes, self.manager.lookup(space, hashes, client, self.now, lease_s), strict=True):
            if found is None:
                continue
            assert found.hash == hash
            assert found.checksum == self.truth[space, hash]
            self.see(client, found, self.now + (5.0 if lease_s is None else lease_s))
            self.seen[found.tier.value] += 1

    def see(self, client: int, found: Found, until: float) -> None:
        """A client gets a lease. Its earlier lease is not shortened."""
        _found, before = self.leases.get((client, found.version), (None, 0.0))
        self.leases[client, found.version] = (found, max(before, until))

    @precondition(lambda self: self.leases)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=3))
    def promote(self, which: list[int]) -> None:
        client = list(self.leases)[which[0] % len(self.leases)][0]
        versions = [list(self.leases)[i % len(self.leases)][1] for i in which]
        self.manager.promote([*versions, 10**9], client, self.now)
        for version in versions:
            found = self.manager.found(version)
            if found is not None:
                self.see(client, found, self.now + 5.0)
                assert found.tier is EntryTier.DRAM or self.manager.pending(version)

    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=6))
    def prefetch(self, which: list[int]) -> None:
        """A gateway names blocks; it gets no lease, and nobody's lease or content suffers (see the invariants)."""
        stored = list(self.truth) or [(SPACES[0], name(0))]
        space = stored[which[0] % len(stored)][0]
        hashes = [stored[index % len(stored)][1] for index in which]
        leased = self.manager.stats().leased
        count = self.manager.prefetch(space, [*hashes, name(99)], self.now)
        assert count.missing >= 1
        assert count.in_memory + count.loading + count.missing + count.refused == len(hashes) + 1
        assert self.manager.stats().leased <= leased, "some may have expired"

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        client, version = list(self.leases)[which % len(self.leases)]
        del self.leases[client, version]
        self.manager.release([version, version, 10**9], client, self.now)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 100), holder=st.integers(0, 1))
    def hold(self, which: int, holder: int) -> None:
        _client, version = list(self.leases)[which % len(self.leases)]
        found = self.manager.found(version)
        held = self.manager.hold(version, holder, self.now)
        assert held == (found is not None and found.tier is EntryTier.DRAM)
        if held and found is not None:
            self.holds[holder, version] = found

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 100))
    def unhold(self, which: int) -> None:
        holder, version = list(self.holds)[which % len(self.holds)]
        del self.holds[holder, version]
        self.manager.unhold(version, holder, self.now)
        self.manager.unhold(version, holder, self.now)

    @rule(client=CLIENTS, luck=LUCK)
    def client_gone(self, client: int, luck: int) -> None:
        if luck:
            return
        self.manager.client_gone(client, self.now)
        self.writing = {version: item for version, item in self.writing.items() if item[0] != client}
        self.leases = {key: item for key, item in self.leases.items() if key[0] != client}

    @rule(which=st.integers(0, 100), leased=st.booleans())
    def distrust(self, which: int, leased: bool) -> None:
        versions = (
            [version for _client, version in self.leases] if leased else [v.version for v in self.manager.entries()]
        )
        if versions:
            version = versions[which % len(versions)]
            was_there = self.manager.found(version) is not None
            assert self.manager.distrust(version, self.now) == was_there
            assert not self.manager.distrust(version, self.now)
            self.gone.add(version)

    @rule(which=st.integers(0, 100))
    def remove(self, which: int) -> None:
        views = list(self.manager.entries())
        if views:
            view = views[which % len(views)]
            assert self.manager.remove(view.version, self.now) != view.leased
            assert (self.manager.found(view.version) is None) != view.leased

    # Time, disk, tenants

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 12.0]), tick=st.booleans())
    def wait(self, seconds: float, tick: bool) -> None:
        due = self.manager.next_tick(self.now)
        assert due is None or due >= self.now
        self.now += seconds
        if tick:
            self.manager.tick(self.now)
        self.leases = {key: item for key, item in self.leases.items() if item[1] > self.now}

    @rule(which=st.integers(0, 100), ok=st.sampled_from([True, True, True, False]))
    def disk(self, which: int, ok: bool) -> None:
        names = self.driver.names()
        if names:
            chosen = names[which % len(names)]
            order = self.driver.waiting[chosen][0]
            self.driver.do_one(chosen, ok, self.now)
            version = getattr(order, "version", 0)
            if not ok and self.manager.found(version) is None:
                self.gone.add(version)

    @rule(namespace=st.sampled_from(["red", "blue"]), pages=st.sampled_from([0, 1, 8, 30]))
    def quota(self, namespace: str, pages: int) -> None:
        self.quotas[namespace] = pages * PAGE
        self.manager.set_quotas(self.quotas)

    @rule(namespace=st.sampled_from(["red", "blue"]), luck=LUCK)
    def delete_namespace(self, namespace: str, luck: int) -> None:
        if luck:
            return
        here = [view for view in self.manager.entries() if view.space.namespace == namespace]
        usage = self.manager.usage().get(namespace)
        held = usage.dram_bytes + usage.ssd_bytes if usage else 0
        assert self.manager.delete_namespace(namespace, self.now) == (held, len(here))
        assert namespace not in self.manager.usage()
        self.gone.update(view.version for view in here)
        self.gone.update(version for version, item in self.writing.items() if item[1].namespace == namespace)

    @rule(wanted=SIZES, luck=LUCK)
    def everything_frees_up(self, wanted: int, luck: int) -> None:
        """Without users, any object that fits finds space within a few rounds of disk work."""
        if luck or self.holds or wanted > self.manager.stats().dram_capacity_bytes:
            return
        self.now += MODEL_LEASE_S
        self.leases.clear()
        self.manager.tick(self.now)
        for version, (client, *_) in self.writing.items():
            self.manager.abort(version, client, self.now)
        self.writing.clear()
        self.manager.set_quotas({})
        for _ in range(40):
            (grant,) = self.manager.reserve(Space("third", "l"), [(name(0), wanted)], 9, self.now)
            if grant.status is GrantStatus.GRANTED:
                break
            self.driver.do_all(self.now)
            self.manager.tick(self.now)
        assert grant.status is GrantStatus.GRANTED
        self.manager.abort(grant.version, 9, self.now)
        self.manager.set_quotas(self.quotas)

    @precondition(lambda self: self.settings.ssd_bytes)
    @rule(orderly=st.booleans(), luck=LUCK)
    def restart(self, orderly: bool, luck: int) -> None:
        """The process ends, with or without its commands executed; the next one finds the files."""
        if luck:
            return
        if orderly:
            self.driver.do_all(self.now)
        files = dict(self.driver.files)
        manager = MemoryManager(self.settings, first_version=1_000_000 + self.contents * 1000)
        self.start(LedgerDriver(manager, files))
        restored = set()
        for (space, hash), (content, nbytes) in list(files.items()):
            if manager.restore(space, hash, Kind.CONTEXT, nbytes, content, 0.0, self.now) is not None:
                restored.add((space, hash))
                self.truth[space, hash] = content
                assert manager.restore(space, hash, Kind.CONTEXT, nbytes, content, 0.0, self.now) is None
        self.driver.do_all(self.now)
        assert set(files) == {(view.space, view.hash) for view in manager.entries()} <= restored

    # What must hold at all times

    def check_all(self) -> None:
        self.balances()
        self.promises_are_kept()
        self.files_are_accounted()
        self.what_may_leave_is_offered()

    @invariant()
    def balances(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check()

    @invariant()
    def promises_are_kept(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.driver.collect()
        for (_client, version), (found, until) in self.leases.items():
            if until > self.now and found.tier is EntryTier.DRAM:
                assert self.driver.holds(found), "a leased extent was given to somebody else"
            if until > self.now and version not in self.gone:
                now = self.manager.found(version)
                assert now is not None, "a leased entry is gone"
                assert found.tier is EntryTier.SSD or now == found, "a leased entry left DRAM"
        for (_holder, version), found in self.holds.items():
            assert self.driver.holds(found), "a held extent was given to somebody else"
            assert version in self.gone or self.manager.found(version) == found
        for _client, _space, _hash, offset, nbytes, _until in self.writing.values():  # those that are too late as well
            assert len(self.driver.read(offset, nbytes)) == 1, "a reserved extent was given away"

    @invariant()
    def files_are_accounted(self) -> None:
        if hasattr(self, "manager") and not self.driver.names():
            on_ssd = {(view.space, view.hash): view for view in self.manager.entries() if view.on_ssd}
            assert on_ssd.keys() == self.driver.files.keys()
            for file, view in on_ssd.items():
                assert self.driver.files[file] == (view.checksum, view.nbytes)

    @invariant()
    def what_may_leave_is_offered(self) -> None:
        if hasattr(self, "manager"):
            inventory = self.manager._inventory
            idle = {
                v
                for v, e in inventory.by_version.items()
                if e.in_dram and not e.pinned and e.guards < inventory.stays_from
            }
            offered = inventory.policy.coldest(1000, idle.__contains__)
            assert set(offered) == idle
            assert len(offered) == len(idle)
