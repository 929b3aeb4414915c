"""Entries move, step by step: after any failure, each is at its source or its owner, and no lease remains."""

import pytest

from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.migration_plan import BATCH_BYTES, BATCH_ENTRIES, planned_batches
from tests.kvpool.core.ledger_driver import PAGE, SPACE
from tests.kvpool.core.queue_driver import FAILURES, Fate, QueueDriver, chain, held_by, moved

CHAIN = chain(8)


def home_of_all(servers: int = 3, slabs: int = 8, ssd_pages: int = 0) -> QueueDriver:
    """All blocks are on the first server."""
    driver = QueueDriver(servers, slabs=slabs, ssd_pages=ssd_pages)
    driver.servers["s0"].put(CHAIN)
    return driver


def test_all_that_moves_is_with_its_owner_and_no_longer_at_home() -> None:
    driver = home_of_all()
    assert [entry.hash for entry in moved(driver, "s0")] == CHAIN
    held = held_by(driver)
    assert held["s0"] == set()
    assert held["s1"] | held["s2"] == set(CHAIN)
    assert driver.in_use == 0


def test_entries_on_disk_are_loaded_first() -> None:
    driver = home_of_all(slabs=1, ssd_pages=50)
    for one in driver.servers.values():
        one.ledger.do_all(driver.now)
    for _ in range(4):
        moved(driver, "s0")
        for one in driver.servers.values():
            one.ledger.do_all(driver.now)
    assert held_by(driver)["s0"] == set()
    assert driver.in_use == 0


def test_a_disk_that_does_not_load_leaves_its_entries_at_home() -> None:
    driver = home_of_all(slabs=1, ssd_pages=50)
    driver.servers["s0"].disk_works = False
    in_memory = {view.hash for view in driver.servers["s0"].manager.entries() if view.in_dram}
    assert {entry.hash for entry in moved(driver, "s0")} <= in_memory
    assert driver.in_use == 0


@pytest.mark.parametrize("fate", FAILURES)
@pytest.mark.parametrize("step", [m.Lookup, m.Reserve, m.Commit, m.Abort, m.ReleaseLeases, m.Drop, m.Report])
@pytest.mark.parametrize("where", ["s0", "s1"])
def test_nothing_is_lost_or_leased_whatever_fails(fate: Fate, step: type[m.Message], where: str) -> None:
    driver = home_of_all()
    driver.servers["s1"].put(CHAIN[:4])  # so that some already exist on it
    spoilt = driver.servers["s0"].handle(m.Lookup(SPACE, (CHAIN[7],), 1.0), driver.now)
    assert isinstance(spoilt, m.Looked)
    assert spoilt.found[0] is not None
    driver.servers["s0"].handle(m.ReleaseLeases((spoilt.found[0].version,)), driver.now)
    driver.servers["s0"].ledger.write(spoilt.found[0].offset, PAGE, 99)
    driver.judge = lambda server, message: fate if server == where and isinstance(message, step) else Fate.WELL
    gone = moved(driver, "s0")
    held = held_by(driver)
    assert set().union(*held.values()) >= set(CHAIN[:7])
    others = held["s1"] | held["s2"]
    assert {entry.hash for entry in gone} <= others - {CHAIN[7]}
    assert CHAIN[7] not in others, "wrong bytes do not move"
    assert driver.in_use == 0


@pytest.mark.parametrize("fate", [Fate.AT_THE_EDGE, Fate.WELL])
def test_answers_at_the_very_edge_count(fate: Fate) -> None:
    driver = home_of_all()
    driver.judge = lambda _server, message: fate if isinstance(message, m.Lookup | m.Drop) else Fate.WELL
    gone = moved(driver, "s0")
    assert len(gone) == (0 if fate is Fate.AT_THE_EDGE else 8), "without time nothing is written"
    assert driver.in_use == 0


def test_what_somebody_only_begins_to_write_at_the_owner_is_kept() -> None:
    driver = home_of_all(servers=2)
    writer = driver.servers["s1"].manager
    grants = writer.reserve(SPACE, [(block, PAGE) for block in CHAIN[:3]], 999, driver.now)
    assert {entry.hash for entry in moved(driver, "s0")} == set(CHAIN[3:])
    assert held_by(driver)["s0"] == set(CHAIN[:3])
    for grant in grants:
        writer.abort(grant.version, 999, driver.now)
    assert {entry.hash for entry in moved(driver, "s0")} == set(CHAIN[:3])


def test_entries_in_use_stay() -> None:
    driver = home_of_all(servers=2)
    driver.servers["s0"].manager.lookup(SPACE, CHAIN[:2], 999, driver.now, 60.0)
    assert {entry.hash for entry in moved(driver, "s0")} == set(CHAIN[2:])
    assert held_by(driver)["s0"] == set(CHAIN[:2])


def stray(version: int, *, age_s: float = 0.0, kind: Kind = Kind.CONTEXT, nbytes: int = PAGE) -> m.ListedEntry:
    return m.ListedEntry(version, SPACE, CHAIN[0], kind, nbytes, True, False, age_s)


def plan(entries: list[m.ListedEntry], capacity_bytes: int = 1 << 40, **settings: int) -> list[list[int]]:
    batches = planned_batches(entries, lambda entry: entry.last_use_age_s, capacity_bytes, **settings)
    return [[entry.version for entry in batch] for batch in batches]


def test_the_last_used_go_first_in_bounded_batches_of_one_kind() -> None:
    assert plan([stray(1, age_s=3.0), stray(2, age_s=1.0), stray(3, age_s=1.0)]) == [[2, 3, 1]]
    assert plan([stray(i, kind=Kind.MODEL if i % 2 else Kind.CONTEXT) for i in range(4)]) == [[0, 2], [1, 3]]
    assert [len(batch) for batch in plan([stray(i) for i in range(150)])] == [BATCH_ENTRIES, BATCH_ENTRIES, 22]
    assert plan([stray(i, nbytes=BATCH_BYTES // 2) for i in range(3)]) == [[0, 1], [2]]
    assert plan([stray(1, nbytes=1 << 40)]) == [[1]], "one at least"
    assert plan([stray(i) for i in range(4)], capacity_bytes=16 * PAGE) == [[0, 1], [2, 3]], "an eighth of its memory"
    assert plan([stray(i) for i in range(9)], round_bytes=3 * PAGE) == [[0, 1, 2]]
    assert plan([]) == []
