"""The KV-cache pool in virtual time: joins, drains, deaths and returns of servers have the expected cost."""

from typing import Any

import pytest

from serving.config.kvcache import KvCacheConfig
from serving.errors import ConfigError, LedgerError
from serving.virtual.memory_members import ActionTimers
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_server import manager_settings
from tests.virtual.core.memory_case import MIB, chain, fill, found, pool_of, run_to

R1_BLOCK_BYTES = 35_979_264


def test_a_prefix_is_found_up_to_its_first_gap_and_evicted_from_its_end() -> None:
    pool = pool_of()
    blocks = chain(1)
    report = pool.store("default", blocks[:3] + blocks[4:], 1, 0.0)
    assert (report.stored, report.present, report.dropped, report.nbytes) == (7, 0, (), 7 * MIB)
    answer = pool.lookup_and_hold("default", blocks, 1, 1.0)
    assert (answer.blocks, answer.from_memory, answer.from_ssd) == (3, 3, 0)
    assert sum(answer.servers.values()) == 3
    assert pool.store("default", blocks, 1, 2.0).present == 7
    assert found(pool, blocks, 3.0) == 8
    assert found(pool, blocks, 3.0, "other") == 0
    counters = pool.counters
    assert (counters.lookups, counters.blocks_asked, counters.blocks_memory) == (3, 24, 11)
    assert (counters.stored, counters.present, counters.stored_bytes) == (8, 7, 8 * MIB)
    assert counters.hit_rate == pytest.approx(11 / 24)
    pool.check()
    pool = pool_of(servers=1, blocks=64)
    fill(pool, 8)
    assert pool.store("default", chain(8)[:5], 1, 1.0).stored == 5
    assert found(pool, chain(0), 2.0) == 3


def test_what_is_held_is_not_evicted_until_it_is_released_or_its_time_is_over() -> None:
    pool = pool_of(servers=1, blocks=8, lease_s=5.0)
    fill(pool, 1)
    held = pool.lookup_and_hold("default", chain(0), 1, 1.0)
    assert pool.store("default", chain(1), 1, 2.0).dropped == (("full", 8),)
    assert pool.next_tick() == 6.0
    assert pool.store("default", chain(1), 1, 6.0).stored == 8
    pool.release(held.handle, 7.0)  # too late, which does no harm
    assert pool.counters.holds_expired == 1
    held = pool.lookup_and_hold("default", chain(1), 1, 8.0)
    pool.release(held.handle, 8.0)
    pool.release(held.handle, 8.0)
    assert pool.store("default", chain(2), 1, 8.0).stored == 8
    assert (pool.counters.evicted, pool.counters.dropped, pool.memory_bytes[0]) == (16, 8, pool.memory_bytes[1])
    pool.check()


def test_a_server_wastes_nothing_and_takes_no_less_than_a_block() -> None:
    config = KvCacheConfig(replicas=2, ub_memory_mib=131_072)
    blocks = 131_072 * MIB // R1_BLOCK_BYTES
    pool = VirtualPool(config, R1_BLOCK_BYTES)
    hashes = [block for number in range(2 * blocks // 8 + 200) for block in chain(number)]
    pool.store("default", hashes, 1, 0.0)
    assert sum(one.entries for one in pool.servers()) == 2 * (blocks - 2)
    assert manager_settings(config, R1_BLOCK_BYTES).slab_bytes == 11 * R1_BLOCK_BYTES  # 3,819 = 347 * 11 + 2
    # Even of few blocks a server makes 64 slabs, as a live one does: part of its end is lost, nothing else.
    small = VirtualPool(KvCacheConfig(replicas=1, ub_memory_mib=350), R1_BLOCK_BYTES)
    assert small.store("default", chain(0), 1, 0.0).stored == 8
    with pytest.raises(ConfigError, match="no room for a KV block"):
        VirtualPool(KvCacheConfig(replicas=1, ub_memory_mib=1), R1_BLOCK_BYTES)


def test_a_new_server_ramps_up_in_eight_steps_while_everything_is_found() -> None:
    pool = pool_of(ramp_s=16.0)
    fill(pool, 20)
    pool.tick(100.0)
    assert pool.add_server(100.0) == "server-4"
    for second in range(100, 130):
        run_to(pool, float(second))
        assert all(found(pool, chain(number), float(second)) == 8 for number in range(20))
    facts = {one.name: one for one in pool.servers()}
    assert facts["server-4"].weight == 1.0
    assert facts["server-4"].entries == pool.counters.moved > 10
    assert pool.counters.moved_bytes == pool.counters.moved * MIB
    assert sum(one.entries for one in facts.values()) == 160
    assert not any(one.left for one in facts.values())
    pool = pool_of(ramp_s=16.0)
    pool.tick(100.0)
    pool.add_server(100.0)
    weights = []
    for second in range(100, 118, 2):
        run_to(pool, second + 0.5)
        weights.append(pool.servers()[4].weight)
    assert weights == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


def test_migration_keeps_its_pace() -> None:
    pool = pool_of(servers=1, blocks=1000, ramp_s=0.0, migration_bytes_per_s=2 * MIB)
    fill(pool, 40)
    pool.tick(100.0)
    pool.add_server(100.0)
    run_to(pool, 109.0)
    # Batches of up to 4 MiB, each followed by its pause.
    assert 16 <= pool.counters.moved <= 24
    run_to(pool, 1000.0)
    assert pool.servers()[0].left == 0
    assert pool.next_tick() is None


def test_a_draining_server_hands_everything_over_until_its_limit() -> None:
    pool = pool_of()
    fill(pool, 20)
    pool.remove_server("server-2", 50.0)
    with pytest.raises(ConfigError, match="leaving already"):
        pool.remove_server("server-2", 50.0)
    assert [one.weight for one in pool.servers()] == [1.0, 1.0, 0.0, 1.0]
    assert all(found(pool, chain(number), 50.0) == 8 for number in range(20))
    run_to(pool, 80.0)
    assert [one.name for one in pool.servers()] == ["server-0", "server-1", "server-3"]
    assert all(found(pool, chain(number), 80.0) == 8 for number in range(20))
    assert pool.counters.moved > 10
    pool = pool_of(servers=2, drain_s=10.0, lease_s=600.0)
    fill(pool, 2)
    held = [pool.lookup_and_hold("default", chain(number), 1, 1.0) for number in range(2)]
    pool.remove_server("server-0", 20.0)
    run_to(pool, 29.7)  # no time is left for another round then
    assert len(pool.servers()) == 2
    run_to(pool, 30.0)
    assert [one.name for one in pool.servers()] == ["server-1"]
    for one in held:
        pool.release(one.handle, 31.0)
    # Held blocks were copied as well: the copies exist.
    assert all(found(pool, chain(number), 31.0) == 8 for number in range(2))
    pool.check()


def test_entries_on_ssd_are_loaded_before_they_move_as_live() -> None:
    def drained(**settings: Any) -> VirtualPool:
        pool = pool_of(servers=2, blocks=64, ssd_mib=200, write_through=True, **settings)
        for number in range(10):
            pool.store("default", chain(number), 1, 10.0 * number)
            run_to(pool, 10.0 * number + 9.0)
        run_to(pool, 100.0)
        pool.lose_server("server-0", 100.0)
        pool.add_server(101.0, "server-0")  # its entries are on SSD only
        run_to(pool, 110.0)
        pool.remove_server("server-0", 110.0)
        return pool

    pool = drained()
    held = pool.servers()[0].entries
    run_to(pool, 110.035)
    assert (pool.counters.promoted, pool.counters.moved) == (3, 0), "10 ms each"
    run_to(pool, 110.045)
    assert pool.counters.moved == 4, "a batch of 4 MiB"
    run_to(pool, 130.0)
    assert pool.counters.moved == held > 20
    assert all(found(pool, chain(number), 130.0) == 8 for number in range(10))
    pool = drained()
    pool.lose_server("server-1", 110.005)  # while the first batch is loaded
    run_to(pool, 114.0)
    assert (pool.counters.moved, pool.servers()[0].entries) == (0, held)
    run_to(pool, 140.0)
    assert pool.servers() == ()


def test_servers_that_leave_without_handing_over() -> None:
    pool = pool_of(servers=2, drain_s=0.0)
    fill(pool, 20)
    before = sum(one.entries for one in pool.servers())
    lost = pool.servers()[0].entries
    pool.remove_server("server-0", 5.0)
    run_to(pool, 5.0)
    assert [one.entries for one in pool.servers()] == [before - lost]
    assert pool.store("default", chain(99), 1, 5.0).stored == 8
    pool = pool_of(servers=1)
    fill(pool, 1)
    pool.remove_server("server-0", 5.0)
    run_to(pool, 5.0)
    assert pool.servers() == ()


def test_a_dead_server_is_missed_until_its_replacement_is_there() -> None:
    pool = pool_of(servers=4)
    fill(pool, 20)
    pool.lose_server("server-1", 30.0)
    facts = {one.name: one for one in pool.servers()}
    assert (facts["server-1"].up, facts["server-1"].entries, facts["server-0"].up) == (False, 0, True)
    report = pool.store("default", [b for number in range(20) for b in chain(number)], 1, 31.0)
    assert dict(report.dropped)["unreachable"] + report.present == 160
    run_to(pool, 36.0)
    assert [one.name for one in pool.servers()] == ["server-0", "server-2", "server-3"]
    for number in range(20):
        pool.store("default", chain(number), 1, 37.0)
        assert found(pool, chain(number), 37.0) == 8
    pool = pool_of(servers=3, blocks=100, ssd_mib=100, write_through=True)
    fill(pool, 10)
    run_to(pool, 20.0)
    pool.lose_server("server-0", 20.0)
    run_to(pool, 60.0)
    assert min(found(pool, chain(number), 60.0) for number in range(10)) < 8
    assert pool.add_server(60.0) == "server-0"
    assert pool.servers()[0].weight == 1.0
    run_to(pool, 61.0)
    assert all(found(pool, chain(number), 61.0) == 8 for number in range(10))
    pool.check()
    pool = pool_of(servers=3, ssd_mib=100, write_through=True)
    fill(pool, 10)
    run_to(pool, 20.0)
    pool.lose_server("server-0", 20.0, keeps_ssd=False)
    assert pool.add_server(21.0) == "server-0"
    assert pool.servers()[0].entries == 0


def test_a_full_server_spills_at_the_disk_s_pace_and_ssd_hits_are_promoted() -> None:
    pool = pool_of(servers=1, blocks=64, ssd_mib=1000, high_water=0.9, low_water=0.5)
    for number in range(12):
        pool.store("default", chain(number), 1, 10.0 * number)
        run_to(pool, 10.0 * number + 9.0)
    answers = [pool.lookup_and_hold("default", chain(number), 1, 200.0) for number in (0, 11)]
    assert [one.blocks for one in answers] == [8, 8]
    assert [one.from_ssd for one in answers] == [8, 0]
    run_to(pool, 202.0)
    for one in answers:
        pool.release(one.handle, 202.0)
    assert pool.lookup_and_hold("default", chain(0), 1, 203.0).from_memory == 8
    counters = pool.counters
    assert counters.promoted == counters.blocks_ssd == 8
    assert counters.spilled == counters.evicted == 64
    assert pool.servers()[0].ssd_bytes == counters.spilled * MIB
    pool.check()
    pool = pool_of(servers=1, blocks=40, ssd_mib=1000, write_through=True)
    pool.store("default", chain(0), 1, 0.0)
    run_to(pool, 0.035)
    assert pool.counters.spilled == 3  # 10 ms each
    run_to(pool, 1.0)
    assert pool.counters.spilled == 8


def test_a_namespace_keeps_to_its_quota() -> None:
    pool = pool_of(servers=2, quotas={"red": 20 * MIB})
    for number in range(10):
        pool.store("red", chain(number), 1, float(number))
        pool.store("blue", chain(number), 1, float(number))
    assert found(pool, chain(0), 20.0, "blue") == 8
    assert found(pool, chain(0), 20.0, "red") == 0
    assert 80 + 16 <= sum(one.entries for one in pool.servers()) <= 80 + 20
    pool.check()


def test_wrong_names_and_wrong_books_are_told_and_without_servers_nothing_is_stored() -> None:
    pool = pool_of(servers=2)
    with pytest.raises(ConfigError, match="no memory server 'x'; there are server-0, server-1"):
        pool.remove_server("x", 0.0)
    with pytest.raises(ConfigError, match="no memory server"):
        pool.lose_server("x", 0.0)
    with pytest.raises(ConfigError, match="there is a memory server"):
        pool.add_server(0.0, "server-1")
    pool = pool_of(servers=1)
    fill(pool, 1)
    held = pool.lookup_and_hold("default", chain(0), 1, 0.0)
    held.handle.blocks.pop()
    with pytest.raises(LedgerError, match="lent wrongly"):
        pool.check()
    pool = pool_of(servers=0)
    assert pool.store("default", chain(0), 1, 0.0).dropped == (("no server", 8),)
    assert found(pool, chain(0), 0.0) == 0
    assert pool.servers() == ()
    assert pool.memory_bytes[0] == 0
    assert pool.next_tick() is None


def test_the_same_history_gives_the_same_pool() -> None:
    def play() -> tuple[Any, ...]:
        pool = pool_of(servers=3, blocks=30, ssd_mib=50, ramp_s=8.0)
        for number in range(60):
            now = float(number)
            answer = pool.lookup_and_hold("default", chain(number % 17), 1, now)
            pool.store("default", chain(number % 17)[answer.blocks :], 1, now + 0.1)
            pool.release(answer.handle, now + 0.2)
            if number == 20:
                pool.add_server(now + 0.3)
            if number == 40:
                pool.lose_server("server-1", now + 0.3)
            if number == 50:
                pool.remove_server("server-0", now + 0.3)
        pool.check()
        return pool.counters, pool.servers()

    assert play() == play()
    timers = ActionTimers()
    done: list[str] = []
    for time, word in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        timers.at(time, lambda now, word=word: done.append(f"{word}{now:g}"))  # type: ignore[misc]
    while timers.due < float("inf"):
        now, action = timers.pop()
        action(now)
    assert done == ["a1", "b1", "c2"]
