"""A read, step by step: returned blocks are verified, and every lease is released, whatever servers and disks do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier
from serving.kvpool.core.operation import PoolAnswer, PoolAsk, PoolPost, PoolReadDone
from serving.kvpool.core.prefix_find import FoundPrefix, PrefixFind
from serving.kvpool.core.prefix_read import AHEAD_SHARE, SSD_GROUP_BLOCKS, LoadsAhead, PrefixRead
from serving.values.pool_outcome import FetchReport, MissReason
from tests.kvpool.core.ledger_driver import PAGE, SPACE
from tests.kvpool.core.queue_driver import FAILURES, Fate, QueueDriver, chain

CHAIN = chain(12)


def lookup(driver: QueueDriver, count: int = 12) -> FoundPrefix:
    find = PrefixFind(driver.ring, driver.servers, SPACE, chain(count), 60.0, driver.now + 1.0)
    driver.drive(find)
    assert find.result is not None
    assert len(find.result.found) == count
    return find.result


def read(driver: QueueDriver, found: FoundPrefix, wanted: int = 1000, seconds: float = 10.0) -> FetchReport:
    """Assert that every good block has arrived, and no lease is left."""
    one = PrefixRead(found, wanted, lambda _server: 16 * PAGE, driver.now + seconds)
    driver.drive(one)
    driver.check()
    assert one.result is not None
    hashes = [entry.hash for entry in found.found[: one.result.blocks]]
    assert [driver.got[index] for index in range(one.result.blocks)] == [block[-1] for block in hashes]
    assert driver.in_use == 0
    return one.result


def in_memory(servers: int = 2) -> QueueDriver:
    driver = QueueDriver(servers)
    driver.put(CHAIN)
    return driver


def on_disk(count: int = 12, servers: int = 1, in_memory: int = 4) -> QueueDriver:
    """The first stored blocks are on SSD: servers have a few pages of memory."""
    driver = QueueDriver(servers, slabs=in_memory // 4, ssd_pages=200)
    driver.put(chain(count)[::-1])
    for server in driver.servers.values():
        server.ledger.do_all(driver.now)
    return driver


def test_all_blocks_arrive() -> None:
    driver = in_memory()
    assert read(driver, lookup(driver)) == FetchReport(12, nbytes=12 * PAGE)


@pytest.mark.parametrize("wanted", [0, 5])
def test_fewer_places_than_found(wanted: int) -> None:
    driver = in_memory()
    assert read(driver, lookup(driver), wanted) == FetchReport(wanted, nbytes=wanted * PAGE)
    assert len(driver.got) == wanted


@pytest.mark.parametrize("reason", ["unreachable", "timeout", "gone", "error"])
def test_the_first_block_that_cannot_be_copied_ends_the_prefix(reason: str) -> None:
    driver = in_memory()
    found = lookup(driver)
    driver.judge_copy = lambda _server, index: reason if index in (5, 8) else None
    assert read(driver, found) == FetchReport(5, lost_blocks=7, reason=MissReason(reason), nbytes=5 * PAGE)


def test_wrong_bytes_are_reported_and_removed() -> None:
    driver = in_memory()
    found = lookup(driver)
    driver.servers[found.servers[6]].ledger.write(found.found[6].offset, PAGE, 99)
    assert read(driver, found) == FetchReport(6, lost_blocks=6, reason=MissReason.CHECKSUM, nbytes=6 * PAGE)
    assert (found.servers[6], m.Report((found.found[6].version,))) in driver.said
    assert driver.servers[found.servers[6]].manager.found(found.found[6].version) is None


@pytest.mark.parametrize(("seconds", "blocks"), [(3.0, 12), (1.25, 5), (1.0, 4), (0.0, 0)])
def test_no_copy_is_begun_at_the_deadline_or_later(seconds: float, blocks: int) -> None:
    driver = in_memory()
    driver.copy_s = 0.25
    report = read(driver, lookup(driver), seconds=seconds)
    assert (report.blocks, report.lost_blocks) == (blocks, 12 - blocks)
    assert report.reason is (None if blocks == 12 else MissReason.TIMEOUT)


def test_the_reason_of_the_lookup_is_kept() -> None:
    driver = in_memory()
    found = lookup(driver)
    short = FoundPrefix(found.found, found.servers, 3, MissReason.UNREACHABLE)
    assert read(driver, short) == FetchReport(12, 0, 3, MissReason.UNREACHABLE, 12 * PAGE)


@pytest.mark.parametrize("fate", [Fate.GONE, Fate.UNSENT])
@pytest.mark.parametrize("wrong", [True, False])
def test_last_words_that_do_not_arrive_end_the_connection(fate: Fate, wrong: bool) -> None:
    driver = in_memory()
    found = lookup(driver)
    if wrong:
        driver.servers[found.servers[3]].ledger.write(found.found[3].offset, PAGE, 99)
    driver.judge = lambda _server, message: fate if isinstance(message, m.ReleaseLeases | m.Report) else Fate.WELL
    assert read(driver, found).blocks == (3 if wrong else 12)
    assert set(driver.closed) == {"s0", "s1"}


def test_blocks_on_disk_come_in_groups_whose_room_is_given_back() -> None:
    driver = on_disk(12)
    found = lookup(driver)
    tiers = [one.tier for one in found.found]
    assert EntryTier.DRAM in tiers
    assert EntryTier.SSD in tiers
    one = PrefixRead(found, 12, lambda _server: 16 * PAGE, driver.now + 10.0)  # so groups of two blocks
    driver.drive(one)
    assert one.result == FetchReport(12, tiers.count(EntryTier.SSD), nbytes=12 * PAGE)
    assert driver.in_use == 0
    said = [message for _, message in driver.said if isinstance(message, m.Promote)]
    assert said[0].wait_s == 0, "a hint first"
    asked = [message for message in said if message.wait_s]
    assert [len(message.versions) for message in asked] == [2] * (tiers.count(EntryTier.SSD) // 2)
    assert all(0 < message.wait_s <= 9.0 for message in asked)


@settings(max_examples=200)
@given(
    loads=st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=30),
    memory=st.integers(1, 400),
    steps=st.lists(st.integers(0, 8), max_size=40),
)
def test_loads_are_ordered_once_and_within_the_window(
    loads: list[tuple[bool, int]], memory: int, steps: list[int]
) -> None:
    disk = [(place, nbytes) for place, (on_disk, nbytes) in enumerate(loads) if on_disk]
    ahead = LoadsAhead(disk, memory)
    start, ordered = 0, list[int]()
    for step in [0, *steps, *[1] * len(loads)]:
        start += step
        ordered += ahead.next(start)
        unread = [(place, nbytes) for place, nbytes in disk if place >= start]
        loaded = [nbytes for place, nbytes in unread if place in ordered]
        assert sum(loaded[1:]) + (loaded[0] if len(loaded) > 1 else 0) <= memory * AHEAD_SHARE
        assert not unread or unread[0][0] in ordered, "the next one, whatever its size"
    assert ordered == sorted(set(ordered))


def test_disks_load_the_next_blocks_while_one_is_copied() -> None:
    driver = on_disk(24, servers=2, in_memory=8)
    driver.put(chain(60)[30:])  # so that the prefix is on SSD only
    for server in driver.servers.values():
        server.ledger.do_all(driver.now)
    found = lookup(driver, 24)
    assert all(one.tier is EntryTier.SSD for one in found.found)
    one = PrefixRead(found, 24, lambda _server: 32 * PAGE, driver.now + 10.0)
    asked, *hints = one.start(driver.now)
    assert isinstance(asked, PoolAsk)
    assert isinstance(asked.message, m.Promote)
    posted = [hint.message for hint in hints if isinstance(hint, PoolPost)]
    loading = [version for message in posted if isinstance(message, m.Promote) for version in message.versions]
    assert loading
    assert not set(loading) & set(asked.message.versions)


def test_many_small_blocks_come_in_bounded_groups() -> None:
    driver = on_disk(80, in_memory=40)
    found = lookup(driver, 80)
    one = PrefixRead(found, 80, lambda _server: 1 << 40, driver.now + 10.0)
    driver.drive(one)
    assert one.result is not None
    assert one.result.blocks == 80
    asked = [len(message.versions) for _, message in driver.said if isinstance(message, m.Promote) and message.wait_s]
    assert max(asked) <= SSD_GROUP_BLOCKS


@pytest.mark.parametrize("fate", FAILURES)
@pytest.mark.parametrize("hint", [True, False])
@pytest.mark.parametrize("servers", [1, 2])
def test_blocks_before_the_first_on_a_disk_that_fails_are_good(fate: Fate, hint: bool, servers: int) -> None:
    driver = on_disk(12, servers)
    found = lookup(driver)
    disk = [index for index, one in enumerate(found.found) if one.tier is EntryTier.SSD]
    first = disk[0]
    theirs = found.servers[first]

    def judge(server: str, message: m.Message) -> Fate:
        wanted = isinstance(message, m.Promote) and (message.wait_s == 0) == hint
        return fate if wanted and server == theirs else Fate.WELL

    driver.judge = judge
    report = read(driver, found)
    if hint and fate not in (Fate.UNSENT, Fate.GONE):
        assert report.blocks == 12, "the answer to a hint says nothing"
    else:
        last = fate is Fate.SHORT
        assert report.blocks >= first if last else report.blocks == first
        assert report.reason is (MissReason.GONE if last else FAILURES[fate])
        assert report.lost_blocks == 12 - report.blocks


def test_a_disk_that_has_not_loaded_in_time_is_a_timeout_else_the_block_is_gone() -> None:
    for seconds, reason in ((0.3, MissReason.TIMEOUT), (10.0, MissReason.GONE)):
        driver = on_disk(12)
        found = lookup(driver)
        driver.servers["s0"].disk_works = False
        first = next(index for index, one in enumerate(found.found) if one.tier is EntryTier.SSD)
        report = read(driver, found, seconds=seconds)
        assert (report.blocks, report.reason) == (first, reason)


@pytest.mark.parametrize("fate", [Fate.GONE, Fate.UNSENT])
def test_room_that_cannot_be_given_back_is_given_back_at_the_end(fate: Fate) -> None:
    driver = on_disk(12)
    found = lookup(driver)
    releases: list[m.Message] = []

    def judge(_server: str, message: m.Message) -> Fate:
        if isinstance(message, m.ReleaseLeases):
            releases.append(message)
            return fate if len(releases) == 1 else Fate.WELL
        return Fate.WELL

    driver.judge = judge
    one = PrefixRead(found, 12, lambda _server: 16 * PAGE, driver.now + 10.0)
    driver.drive(one)
    assert one.result is not None
    assert one.result.reason in (MissReason.TIMEOUT, MissReason.UNREACHABLE)
    assert driver.in_use == 0


def test_what_comes_twice_or_too_late_changes_nothing() -> None:
    driver = on_disk(12)
    driver.judge = lambda _server, message: Fate.TWICE if isinstance(message, m.Promote) else Fate.WELL
    found = lookup(driver)
    one = PrefixRead(found, 12, lambda _server: 16 * PAGE, driver.now + 10.0)
    driver.drive(one)
    result = one.result
    assert result is not None
    assert result.blocks == 12
    assert one.on(PoolReadDone(0, MissReason.ERROR), 500.0) == []
    assert one.on(PoolAnswer("s0", m.Promoted((None,))), 500.0) == []
    assert one.result is result
