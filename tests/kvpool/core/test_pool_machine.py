"""The whole pool in virtual time: servers join, die, drain, fill up or are forgotten; a reader gets the correct bytes
or
none, every server's ledger, memory and files agree, and a death costs no more than the server's own entries.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.kvpool.core.entry import EntryTier, GrantStatus
from serving.values.pool_view import ServerState
from tests.kvpool.core.ledger_driver import PAGE
from tests.kvpool.core.pool_model import (
    CONTENT,
    KEYS,
    LEASE_S,
    SLOTS,
    WRITE_LEASE_S,
    Pool,
    Reading,
    Server,
    Writing,
    nbytes_of,
    small_settings,
)

CLIENTS = st.integers(1, 3)
SOME = st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=8, unique=True)
SLOT = st.sampled_from(SLOTS)
NAMESPACE = st.sampled_from(["red", "blue"])
WHICH = st.integers(0, 100)
INCIDENTS = ["kill", "silence", "speak", "drain", "leave"]
RARE = st.sampled_from([False, False, True])


class PoolMachine(RuleBasedStateMachine):
    """Clients of a pool, and all events that can happen to it."""

    @initialize(
        servers=st.integers(1, 4),
        slabs=st.integers(1, 4),
        ssd_pages=st.sampled_from([0, 6, 12, 100]),
        write_through=st.booleans(),
        water=st.sampled_from([(1.0, 1.0), (0.8, 0.4)]),
        max_spills=st.integers(1, 3),
    )
    def build(
        self, servers: int, slabs: int, ssd_pages: int, write_through: bool, water: tuple[float, float], max_spills: int
    ) -> None:
        self.writing: list[Writing] = []
        self.reading: dict[tuple[str, int, int], Reading] = {}  # incarnation, client, version -> its lease
        self.pool = Pool(small_settings(slabs, ssd_pages, write_through, water, max_spills))
        for slot in SLOTS[:servers]:
            self.pool.start(slot, told_before=True)

    # Writers

    @rule(which=SOME, client=CLIENTS, slow=RARE, stale=RARE)
    def put(self, which: list[int], client: int, slow: bool, stale: bool) -> None:
        """Store entries.

        Args:
            slow: the client only reserves now; its success is decided later.
            stale: the client's ring is an old one.
        """
        ring = self.pool.stale if stale else self.pool.ring
        for space, hash in (KEYS[index] for index in which):
            server = self.pool.up.get(ring.primary(hash) or "")
            if server is None:
                continue
            key = (space, hash)
            (grant,) = server.manager.reserve(space, [(hash, nbytes_of(key))], client, self.pool.now)
            self.pool.seen[grant.status.value] += 1
            if grant.status is not GrantStatus.GRANTED:
                continue
            assert key not in server.held
            until = self.pool.now + WRITE_LEASE_S
            writing = Writing(server, key, grant.version, grant.offset, client, until)
            server.driver.write(writing.offset, nbytes_of(key), writing.mark)
            self.writing.append(writing)
            if not slow:
                self.finish(-1)

    @precondition(lambda self: self.writing)
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        """A slow client has written its block, in time or late."""
        writing = self.writing.pop(which % len(self.writing) if which >= 0 else which)
        server, key = writing.server, writing.key
        in_time = writing.until > self.pool.now
        server.driver.write(writing.offset, nbytes_of(key), CONTENT[key])
        done = server.manager.commit(writing.version, CONTENT[key], writing.client, self.pool.now)
        assert done == (in_time and not writing.forgotten)
        if done:
            server.may_hold.add(key)
        else:
            self.pool.seen["not committed"] += 1

    # Readers

    @rule(which=SOME, client=CLIENTS, last=RARE, keep=RARE)
    def get(self, which: list[int], client: int, last: bool, keep: bool) -> None:
        """Read entries.

        Args:
            last: of several copies the one of the least likely holder is taken.
            keep: leases are kept until they expire.
        """
        for space, hash in (KEYS[index] for index in which):
            answers: list[Reading] = []
            for server in [self.pool.up[n] for n in self.pool.ring.readers(hash) if n in self.pool.up]:
                (found,) = server.manager.lookup(space, [hash], client, self.pool.now)
                assert (found is not None) == ((space, hash) in server.held)
                if found is not None:
                    assert found.hash == hash
                    reading = Reading(server, (space, hash), found, client, self.pool.now + LEASE_S)
                    self.reading[server.incarnation, client, found.version] = reading
                    answers.append(reading)
            for reading in answers:
                self.read(reading)
                chosen = reading is answers[-last]
                if chosen and reading.found.tier is EntryTier.SSD:
                    reading.server.manager.promote([reading.found.version], client, self.pool.now)
                elif not (chosen and keep):
                    self.end(reading)

    @rule(which=SOME, client=CLIENTS)
    def turn(self, which: list[int], client: int) -> None:
        """A typical request: look up, and write the missing blocks."""
        self.get(which, client, last=False, keep=False)
        self.put(which, client, slow=False, stale=False)

    @precondition(lambda self: self.reading)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        self.end(list(self.reading.values())[which % len(self.reading)])

    def end(self, reading: Reading) -> None:
        del self.reading[reading.server.incarnation, reading.client, reading.found.version]
        reading.server.manager.release([reading.found.version], reading.client, self.pool.now)

    def read(self, reading: Reading) -> None:
        """A leased entry in memory has the correct content, also after deletion or a load from SSD."""
        server, key, was = reading.server, reading.key, reading.found
        now = server.manager.found(was.version)
        if reading.until <= self.pool.now:
            return
        assert now is not None or reading.excused, "a leased entry is gone"
        for found in (was, now):
            if found is not None and found.tier is EntryTier.DRAM:
                assert (found.checksum, found.nbytes) == (CONTENT[key], nbytes_of(key))
                assert server.driver.read(found.offset, found.nbytes) == {CONTENT[key]}
        promoted = was.tier is EntryTier.SSD and now is not None and now.tier is EntryTier.DRAM
        self.pool.seen["read after promotion" if promoted else f"read {was.tier.value}"] += 1

    # Disks, time, quotas

    @rule(slot=SLOT, count=st.integers(1, 4), ok=st.sampled_from([True, True, True, False]))
    def disk(self, slot: str, count: int, ok: bool) -> None:
        server = self.pool.up.get(slot)
        if server is None:
            return
        for name in server.driver.names()[:count]:
            server.work(name, ok, self.pool.now)
            self.pool.seen["disk work" if ok else "disk failure"] += 1
            for reading in self.reading.values():
                reading.excused |= not ok and reading.server is server and reading.key == name

    @rule()
    def all_disks(self) -> None:
        for server in self.pool.up.values():
            server.work_all(self.pool.now)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.pool.pass_time(seconds)
        self.reading = {key: reading for key, reading in self.reading.items() if reading.until > self.pool.now}

    @rule(namespace=NAMESPACE, pages=st.sampled_from([0, 0, 4, 12, 40]))
    def quota(self, namespace: str, pages: int) -> None:
        self.pool.quotas[namespace] = pages * PAGE
        self.pool.look()

    # Servers

    @precondition(lambda self: len(self.pool.up) < len(SLOTS))
    @rule(which=WHICH, told_before=st.booleans())
    def start(self, which: int, told_before: bool) -> None:
        """A server joins; if its slot had an earlier process, it finds that process's files."""
        free = [slot for slot in SLOTS if slot not in self.pool.up]
        self.pool.start(free[which % len(free)], told_before)

    @precondition(lambda self: self.pool.up)
    @rule(which=WHICH)
    def settle(self, which: int) -> None:
        """Move entries to their owners, as after a join."""
        name = list(self.pool.up)[which % len(self.pool.up)]
        if name in self.pool.listed:
            self.pool.settle(name)

    @precondition(lambda self: self.pool.up)
    @rule(which=WHICH, what=st.sampled_from(INCIDENTS))
    def incident(self, which: int, what: str) -> None:
        """A random event of a server."""
        server = list(self.pool.up.values())[which % len(self.pool.up)]
        if what == "kill":
            self.pool.seen["killed with entries"] += bool(server.held)
            del self.pool.up[server.name]
            self.ended(server)
        elif what == "leave":
            self.leave(server)
        else:
            server.silent = what == "silence"
            server.state = ServerState.DRAINING if what == "drain" else server.state
            self.pool.look()

    def leave(self, server: Server) -> None:
        """A draining server gives away its entries as far as possible, and ends."""
        if server.state is not ServerState.DRAINING or server.name not in self.pool.listed:
            return
        left = self.pool.settle(server.name, leaving=True)
        assert left or not server.held
        self.pool.seen["left with entries" if left else "left empty"] += 1
        self.pool.leave(server.name)
        self.ended(server)

    def ended(self, server: Server) -> None:
        self.writing = [writing for writing in self.writing if writing.server is not server]
        self.reading = {key: reading for key, reading in self.reading.items() if reading.server is not server}

    # Clients and namespaces that go

    @rule(client=CLIENTS, rare=RARE)
    def client_gone(self, client: int, rare: bool) -> None:
        if not rare:
            return
        for server in self.pool.up.values():
            server.manager.client_gone(client, self.pool.now)
        self.writing = [writing for writing in self.writing if writing.client != client]
        self.reading = {key: reading for key, reading in self.reading.items() if reading.client != client}

    @rule(namespace=NAMESPACE, rare=RARE)
    def delete_namespace(self, namespace: str, rare: bool) -> None:
        """Unreachable servers miss the deletion; all others have no entry of the namespace left."""
        if not rare:
            return
        for server in [server for name, server in self.pool.up.items() if name in self.pool.listed]:
            held = {key for key in server.held if key[0].namespace == namespace}
            assert server.manager.delete_namespace(namespace, self.pool.now)[1] == len(held)
            assert not server.used(namespace)
            server.may_hold = {key for key in server.may_hold if key[0].namespace != namespace}
            self.pool.seen["deleted"] += len(held)
            for writing in self.writing:
                writing.forgotten |= writing.server is server and writing.key[0].namespace == namespace
            for reading in self.reading.values():
                reading.excused |= reading.server is server and reading.key[0].namespace == namespace

    # What must hold at all times

    @invariant()
    def balances(self) -> None:
        for server in self.pool.up.values():
            server.check()

    @invariant()
    def promises_are_kept(self) -> None:
        for reading in self.reading.values():
            self.read(reading)
        for writing in self.writing:  # those that are too late as well
            pages = writing.server.driver.read(writing.offset, nbytes_of(writing.key))
            assert pages == {writing.mark}, "a reserved extent was given away"
        writing_on = Counter(writing.server.name for writing in self.writing)
        for name, server in self.pool.up.items():
            assert server.manager.stats().writing <= writing_on[name], "a reservation outlived its client"

    def teardown(self) -> None:
        """After the writers have ended, every server releases all requested leases in time."""
        if not hasattr(self, "pool"):
            return
        for writing in self.writing:
            writing.server.manager.abort(writing.version, writing.client, self.pool.now)
        self.pool.pass_time(max(LEASE_S, WRITE_LEASE_S))
        for server in self.pool.up.values():
            server.work_all(self.pool.now)
            server.tick(self.pool.now + LEASE_S)  # promotions that waited for space are given up
            server.work_all(self.pool.now + LEASE_S)
            server.check()
            stats = server.manager.stats()
            in_use = (stats.leased, stats.writing, stats.spilling, stats.loading, stats.waiting, stats.hidden)
            assert not any(in_use)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=10, stateful_step_count=40)


def random_walk(seed: int, steps: int) -> Counter[str]:
    """The same machine with random moves: old and crowded pools, which short runs do not reach.

    Returns: the number of events by kind.
    """
    chance = Random(seed)
    machine = PoolMachine()
    machine.build(
        servers=chance.randint(1, 4),
        slabs=chance.randint(1, 4),
        ssd_pages=chance.choice([0, 6, 12, 100]),
        write_through=chance.random() < 0.3,
        water=chance.choice([(1.0, 1.0), (0.8, 0.4)]),
        max_spills=chance.randint(1, 3),
    )

    def some() -> list[int]:
        return chance.sample(range(len(KEYS)), chance.randint(1, 8))

    def client() -> int:
        return chance.randint(1, 3)

    def which() -> int:
        return chance.randrange(100)

    def happens(probability: float) -> bool:
        return chance.random() < probability

    moves: dict[Callable[[], object], float] = {
        lambda: machine.turn(some(), client()): 20,
        lambda: machine.put(some(), client(), slow=happens(0.5), stale=happens(0.2)): 6,
        lambda: machine.get(some(), client(), last=happens(0.5), keep=happens(0.5)): 10,
        lambda: machine.writing and machine.finish(which()): 5,
        lambda: machine.reading and machine.release(which()): 8,
        lambda: machine.disk(chance.choice(SLOTS), count=chance.randint(1, 4), ok=happens(0.9)): 20,
        lambda: machine.all_disks(): 3,
        lambda: machine.wait(chance.choice([0.25, 1.0, 3.0, 12.0])): 6,
        lambda: machine.quota(chance.choice(["red", "blue"]), pages=chance.choice([0, 0, 4, 12, 40])): 1,
        lambda: len(machine.pool.up) < len(SLOTS) and machine.start(which(), told_before=happens(0.5)): 4,
        lambda: machine.pool.up and machine.settle(which()): 3,
        lambda: machine.pool.up and machine.incident(which(), chance.choice(INCIDENTS)): 3,
        lambda: machine.client_gone(client(), rare=True): 1,
        lambda: machine.delete_namespace(chance.choice(["red", "blue"]), rare=True): 1,
    }
    for move in chance.choices(list(moves), list(moves.values()), k=steps):
        move()
        machine.balances()
        machine.promises_are_kept()
    machine.teardown()
    return machine.pool.seen


OFTEN = ("granted", "present", "full", "quota", "read dram", "read ssd", "read after promotion", "disk work", "grown")
SOMETIMES = ("died", "killed with entries", "restored", "replaced", "moved", "deleted", "disk failure", "not committed")


def test_long_random_walks() -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        seen += random_walk(seed, 350)
    # Otherwise the walks covered nothing and proved nothing.
    assert min(seen[what] for what in OFTEN) > 50, seen
    assert min(seen[what] for what in SOMETIMES) > 3, seen
