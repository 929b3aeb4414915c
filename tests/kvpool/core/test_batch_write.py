"""A write, step by step: each entry is stored or dropped with a reason, and no reservation remains."""

import pytest

from serving.kvpool.core import messages as m
from serving.kvpool.core.batch_write import BatchWrite, NewEntry
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.operation import PoolAnswer, PoolPost, PoolWritten
from tests.kvpool.core.ledger_driver import PAGE, SPACE
from tests.kvpool.core.queue_driver import FAILURES, Fate, QueueDriver, chain

CHAIN = chain(12)


def written(driver: QueueDriver, seconds: float = 4.0, expected: int | None = None) -> list[str]:
    """Outcome of a write for each block of the chain; asserts that exactly the stored blocks exist, and none is
    reserved.
    """
    driver.contents = [block[-1] for block in CHAIN]
    entries = [NewEntry(block, PAGE, driver.ring.primary(block), expected) for block in CHAIN]
    write = BatchWrite(SPACE, Kind.CONTEXT, entries, driver.now + seconds)
    driver.drive(write)
    driver.check()
    assert write.result is not None
    assert driver.in_use == 0, "nothing is left uncommitted and unaborted"
    held = {view.hash for server in driver.servers.values() for view in server.manager.entries()}
    stored = {block for block, what in zip(CHAIN, write.result, strict=True) if what in ("stored", "present")}
    assert held >= stored
    return write.result


def at(driver: QueueDriver, server: str) -> list[int]:
    """Entries that belong to a server."""
    return [index for index, block in enumerate(CHAIN) if driver.ring.primary(block) == server]


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_each_entry_is_stored_once_on_its_owner(servers: int) -> None:
    driver = QueueDriver(servers)
    assert written(driver) == ["stored"] * 12
    assert written(driver) == ["present"] * 12
    for name, server in driver.servers.items():
        assert [view.hash for view in server.manager.entries()] == [CHAIN[index] for index in at(driver, name)]
        commits = [message for who, message in driver.said if who == name and isinstance(message, m.Commit)]
        digests = [digest for commit in commits for _, digest in commit.items]
        assert digests == [CHAIN[index][-1] for index in at(driver, name)][::-1], "the last block first"


def test_without_a_server_nothing_is_written() -> None:
    assert written(QueueDriver(0)) == ["no server"] * 12


def test_what_finds_no_room_is_dropped() -> None:
    assert sorted(written(QueueDriver(1, slabs=2))) == ["full"] * 4 + ["stored"] * 8


@pytest.mark.parametrize("fate", FAILURES)
@pytest.mark.parametrize("step", [m.Reserve, m.Commit])
def test_a_server_that_fails_costs_its_entries_and_no_others(fate: Fate, step: type[m.Message]) -> None:
    for servers in (1, 3):
        driver = QueueDriver(servers)
        driver.judge = lambda server, message: fate if server == "s0" and isinstance(message, step) else Fate.WELL
        outcomes, theirs = written(driver), at(driver, "s0")
        expected = [FAILURES[fate].value if index in theirs else "stored" for index in range(12)]
        assert outcomes == expected


def test_a_silent_server_costs_half_of_the_time() -> None:
    driver = QueueDriver(2)
    driver.judge = lambda server, message: Fate.SILENT if server == "s0" else Fate.WELL
    written(driver)
    assert driver.now == 102.25


def test_answers_at_the_very_edge_count() -> None:
    driver = QueueDriver(2, lambda _server, _message: Fate.AT_THE_EDGE)
    assert written(driver) == ["stored"] * 12
    assert driver.now == 104.0


def test_answers_that_come_twice_change_nothing() -> None:
    assert written(QueueDriver(2, lambda _server, _message: Fate.TWICE)) == ["stored"] * 12


@pytest.mark.parametrize("reason", ["unreachable", "timeout", "expired", "error"])
def test_what_cannot_be_copied_gives_its_room_back(reason: str) -> None:
    driver = QueueDriver(2)
    driver.judge_copy = lambda _server, index: reason if index == 5 else None
    outcomes = written(driver)
    assert outcomes[5] == reason
    theirs = at(driver, driver.ring.primary(CHAIN[5]) or "")
    lost = reason in ("unreachable", "timeout")  # the connection is, with what was reserved
    assert {outcomes[index] for index in theirs if index != 5} == {"expired" if lost else "stored"}
    assert {what for index, what in enumerate(outcomes) if index not in theirs} == {"stored"}


@pytest.mark.parametrize(("seconds", "stored"), [(10.0, 12), (2.25, 8), (2.0, 7), (0.25, 1)])
def test_no_copy_is_begun_at_the_deadline_or_later(seconds: float, stored: int) -> None:
    """Blocks copied in time are committed, a moment after the deadline if necessary."""
    driver = QueueDriver(1, lambda _server, message: Fate.AT_THE_EDGE if isinstance(message, m.Commit) else Fate.WELL)
    driver.copy_s = 0.25
    assert written(driver, seconds) == ["stored"] * stored + ["timeout"] * (12 - stored)


def test_a_writer_that_is_too_late_for_its_reservation() -> None:
    driver = QueueDriver(1)
    driver.copy_s = 1.0  # a reservation lasts ten seconds
    assert written(driver, seconds=60.0) == ["expired"] * 12


def test_wrong_bytes_are_not_stored() -> None:
    driver = QueueDriver(2)
    outcomes = written(driver, expected=CHAIN[4][-1])
    assert outcomes == ["checksum"] * 4 + ["stored"] + ["checksum"] * 7


@pytest.mark.parametrize("fate", [Fate.GONE, Fate.UNSENT])
@pytest.mark.parametrize("failing", ["s0", "s1"])
def test_room_that_cannot_be_given_back_ends_with_its_connection(fate: Fate, failing: str) -> None:
    driver = QueueDriver(2)
    driver.judge_copy = lambda server, index: "error" if index == at(driver, failing)[0] else None
    driver.judge = lambda _server, message: fate if isinstance(message, m.Abort) else Fate.WELL
    outcomes = written(driver)
    assert {outcomes[index] for index in at(driver, failing)[1:]} == {
        "timeout" if fate is Fate.UNSENT else "unreachable"
    }
    assert failing in driver.closed


def test_grants_that_come_too_late_are_given_back() -> None:
    driver = QueueDriver(1)
    write = BatchWrite(SPACE, Kind.CONTEXT, [NewEntry(CHAIN[0], PAGE, "s0")], 104.0)
    driver.judge = lambda _server, _message: Fate.SILENT
    driver.drive(write)
    assert write.result == ["timeout"]
    late = driver.servers["s0"].handle(m.Reserve(SPACE, Kind.CONTEXT, ((CHAIN[0], PAGE),)), 105.0)
    assert isinstance(late, m.Reserved)
    (effect,) = write.on(PoolAnswer("s0", late), 105.0)
    assert isinstance(effect, PoolPost)
    assert effect.message == m.Abort((late.grants[0].version,))
    assert write.on(PoolWritten("s0", [1]), 105.0) == []
    assert write.result == ["timeout"]
