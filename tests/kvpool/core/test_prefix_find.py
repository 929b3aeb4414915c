"""A lookup, step by step: for any behaviour of a server there is a result, and only its blocks stay leased."""

from collections.abc import Sequence

import pytest

from serving.ids import BlockHash
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Found
from serving.kvpool.core.operation import PoolAnswer, PoolAsk, PoolClose, PoolFailure, PoolPost
from serving.kvpool.core.prefix_find import FoundPrefix, PrefixFind
from serving.kvpool.core.ring import HashRing, RingServer
from serving.values.pool_outcome import MissReason
from tests.kvpool.core.ledger_driver import SPACE
from tests.kvpool.core.queue_driver import FAILURES, Fate, Judge, QueueDriver, chain

UNTIL_S = 1.0
CHAIN = chain(12)


def find_in(driver: QueueDriver, hashes: Sequence[BlockHash] = CHAIN) -> PrefixFind:
    return PrefixFind(driver.ring, driver.servers, SPACE, hashes, 5.0, driver.now + UNTIL_S)


def found_in(driver: QueueDriver, hashes: Sequence[BlockHash] = CHAIN) -> FoundPrefix:
    find = find_in(driver, hashes)
    driver.drive(find)
    driver.check()
    assert find.result is not None
    return find.result


def first_at(driver: QueueDriver, server: str) -> int:
    """The first block of the chain that belongs to a server."""
    return next(i for i, one in enumerate(CHAIN) if driver.ring.primary(one) == server)


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_the_longest_prefix_is_found_and_nothing_else_stays_leased(servers: int) -> None:
    driver = QueueDriver(servers)
    driver.put([*CHAIN[:7], *CHAIN[8:]])
    found = found_in(driver)
    assert [one.hash for one in found.found] == CHAIN[:7]
    assert list(found.servers) == [driver.ring.primary(one) for one in CHAIN[:7]]
    assert (found.lost_blocks, found.reason) == (0, None)
    assert driver.in_use == 7
    assert driver.now == 100.25, "all are asked at once"
    wanted = {name for block in CHAIN for name in driver.ring.readers(block)}
    assert {name for name, message in driver.said if isinstance(message, m.Lookup)} == wanted
    assert all(len(message.hashes) <= 12 for _, message in driver.said if isinstance(message, m.Lookup))


def test_a_pool_without_servers_finds_nothing_at_once() -> None:
    driver = QueueDriver(0)
    assert found_in(driver) == FoundPrefix()
    assert driver.now == 100.0


def only(server: str, fate: Fate) -> Judge:
    """One server has a fate, the others are healthy."""
    return lambda name, message: fate if name == server and isinstance(message, m.Lookup) else Fate.WELL


TOOK_S = {Fate.SILENT: 1.0, Fate.LATE: 1.001, Fate.NONSENSE: 0.25, Fate.SHORT: 0.25}


@pytest.mark.parametrize("fate", FAILURES)
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_server_that_fails_costs_its_blocks_and_no_others(servers: int, fate: Fate) -> None:
    driver = QueueDriver(servers)
    driver.put(CHAIN)
    driver.judge = only("s0", fate)
    found = found_in(driver)
    end = first_at(driver, "s0")
    assert [one.hash for one in found.found] == CHAIN[:end]
    assert found.reason is FAILURES[fate]
    theirs = sum("s0" in driver.ring.readers(one) for one in CHAIN[end:])
    assert theirs <= found.lost_blocks <= 12 - end
    assert driver.in_use == end
    assert servers > 1 or driver.now == 100.0 + TOOK_S.get(fate, 0.0)


def test_an_answer_at_the_very_edge_counts() -> None:
    driver = QueueDriver(2, only("s0", Fate.AT_THE_EDGE))
    driver.put(CHAIN)
    assert len(found_in(driver).found) == 12
    assert driver.now == 101.0


def test_an_answer_that_comes_twice_changes_nothing() -> None:
    driver = QueueDriver(2, lambda _server, message: Fate.TWICE if isinstance(message, m.Lookup) else Fate.WELL)
    driver.put(CHAIN)
    assert len(found_in(driver).found) == 12


def test_a_late_answer_gives_its_leases_back() -> None:
    driver = QueueDriver(1)
    driver.put(CHAIN)
    find = find_in(driver)
    find.start(driver.now)
    assert find.on(PoolFailure("s0", MissReason.TIMEOUT), 101.0) == []
    assert find.result == FoundPrefix((), (), 12, MissReason.TIMEOUT)
    late = driver.servers["s0"].handle(m.Lookup(SPACE, tuple(CHAIN[:2]), 5.0), 101.0)
    assert isinstance(late, m.Looked)
    versions = tuple(one.version for one in late.found if one is not None)
    assert find.on(PoolAnswer("s0", late), 101.5) == [PoolPost("s0", m.ReleaseLeases(versions), 101.0)]
    assert find.on(PoolAnswer("s0", m.Looked((None,))), 101.5) == []
    assert find.on(PoolAnswer("s0", m.Done()), 101.5) == []


@pytest.mark.parametrize("fate", [Fate.GONE, Fate.UNSENT])
def test_leases_that_cannot_be_released_end_with_their_connection(fate: Fate) -> None:
    driver = QueueDriver(2, lambda _server, message: fate if isinstance(message, m.ReleaseLeases) else Fate.WELL)
    driver.put(CHAIN[1:])
    assert found_in(driver).found == ()
    assert driver.in_use == 0
    assert set(driver.closed) == {"s0", "s1"}


def answer(find: PrefixFind, server: str, *found: Found | None) -> list[object]:
    return [*find.on(PoolAnswer(server, m.Looked(found)), 100.1)]


def entry(block: BlockHash, version: int, tier: EntryTier = EntryTier.DRAM) -> Found:
    return Found(block, version, tier, 0, 4096, 0)


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_copies_memory_comes_first_then_the_likelier_holder(order: int) -> None:
    ring = HashRing([RingServer("a", 1.0), RingServer("b", 1.0), RingServer("leaving", 0.0)])
    owned = next(one for one in chain(50) if ring.primary(one) == "a")
    find = PrefixFind(ring, ["a", "b", "leaving"], SPACE, [owned, owned, owned], 5.0, 101.0)
    find.start(100.0)
    answers = {
        "a": (entry(owned, 1), entry(owned, 2, EntryTier.SSD), None),
        "b": (entry(owned, 11), entry(owned, 12), entry(owned, 13, EntryTier.SSD)),
        "leaving": (entry(owned, 21), entry(owned, 22), entry(owned, 23, EntryTier.SSD)),
    }
    effects = [one for server in [*answers][::order] for one in answer(find, server, *answers[server])]
    assert find.result is not None
    assert find.result.servers == ("a", "b", "b")
    assert [one.version for one in find.result.found] == [1, 12, 13]
    assert {one.server: one.message for one in effects if isinstance(one, PoolPost)} == {
        "a": m.ReleaseLeases((2,)),
        "b": m.ReleaseLeases((11,)),
        "leaving": m.ReleaseLeases((21, 22, 23)),
    }


def test_blocks_behind_a_lost_one_are_lost_with_it() -> None:
    ring = HashRing([RingServer(name, 1.0) for name in "abcdef"])
    find = PrefixFind(ring, "abcdef", SPACE, CHAIN, 5.0, 101.0)
    asked = {effect.server: effect.message for effect in find.start(100.0) if isinstance(effect, PoolAsk)}
    broken = ring.primary(CHAIN[0])
    for server, message in asked.items():
        assert isinstance(message, m.Lookup)
        if server != broken:
            answer(find, server, *[entry(one, 1) if ring.primary(one) == server else None for one in message.hashes])
    assert broken is not None
    releases = find.on(PoolFailure(broken, MissReason.UNREACHABLE), 100.2)
    assert find.result == FoundPrefix((), (), 12, MissReason.UNREACHABLE)
    assert {one.server for one in releases if isinstance(one, PoolPost)} == {ring.primary(one) for one in CHAIN} - {
        broken
    }


def test_a_wrong_answer_closes_its_connection() -> None:
    find = PrefixFind(HashRing([RingServer("a", 1.0)]), ["a"], SPACE, CHAIN, 5.0, 101.0)
    find.start(100.0)
    assert find.on(PoolAnswer("a", m.Looked((None,) * 13)), 100.1) == [PoolClose("a")]
    assert find.result == FoundPrefix((), (), 12, MissReason.ERROR)
