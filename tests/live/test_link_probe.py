"""Probe reads on real threads: late, hanging, and failed ones."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from serving.errors import HandoffExpiredError, HandoffTimeoutError
from serving.ids import NodeId, ReplicaId
from serving.instance.live.link_probe import DUMMIES_AT_ONCE, LinkProbes, PeerMemory
from serving.instance.live.segment_reader import SegmentPlace
from serving.values.health import LinkLimits, PathFault

pytestmark = pytest.mark.real_time

LIMITS = LinkLimits(period_s=0.02, late_s=0.05, lost_s=0.1)
SOURCE, OTHER = ReplicaId("prefill#0"), ReplicaId("prefill#1")
PATIENCE_S = 60.0


def memory(replica: ReplicaId, segment: str = "segment") -> PeerMemory:
    return PeerMemory(replica, NodeId("node"), SegmentPlace("", 0, segment, 1), 0, 4096)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Path:
    """The result of a probe read."""

    def __init__(self) -> None:
        self.read: Callable[[], None] = lambda: None
        self.asked: list[ReplicaId] = []

    def __call__(self, peer: PeerMemory) -> None:
        self.asked.append(peer.replica)
        if peer.replica == SOURCE:
            self.read()


@contextmanager
def watching(path: Path, limits: LinkLimits = LIMITS) -> Iterator[LinkProbes]:
    probes = LinkProbes(path, limits)
    try:
        yield probes
    finally:
        probes.stop()


def fail(error: Exception) -> Callable[[], None]:
    def read() -> None:
        raise error

    return read


def test_nobody_is_asked_before_a_ticket_has_come() -> None:
    path = Path()
    with watching(path) as probes:
        assert probes._thread is None, "an instance that pulls nothing pays nothing"
        probes.meet(memory(SOURCE))
        until(lambda: len(path.asked) >= 3)
    assert set(path.asked) == {SOURCE}
    assert probes.trouble() == PathFault()
    count = len(path.asked)
    time.sleep(0.1)
    assert len(path.asked) == count, "stopped"


def test_late_dummies_tell_a_saturated_path_until_they_are_prompt_again() -> None:
    path = Path()
    path.read = lambda: time.sleep(0.06)
    with watching(path) as probes:
        probes.meet(memory(SOURCE))
        probes.meet(memory(OTHER))
        until(lambda: probes.trouble() == PathFault(late=(SOURCE,)))
        assert not probes.isolated(SOURCE), "back-pressure, no failover"
        path.read = lambda: None
        until(lambda: probes.trouble() == PathFault())


def test_a_path_on_which_nothing_passes_is_isolated_and_found_again() -> None:
    path = Path()
    path.read = fail(HandoffTimeoutError("nothing"))
    with watching(path) as probes:
        probes.meet(memory(SOURCE))
        probes.meet(memory(OTHER))
        until(lambda: probes.isolated(SOURCE))
        assert probes.trouble() == PathFault(lost=(SOURCE,))
        assert not probes.isolated(OTHER), "others go on"
        assert probes.lost_total == 1
        path.read = lambda: None
        until(lambda: not probes.isolated(SOURCE))


def test_a_read_that_fails_in_an_unforeseen_way_counts_as_missing() -> None:
    path = Path()
    path.read = fail(ValueError("our bug"))
    with watching(path) as probes:
        probes.meet(memory(SOURCE))
        until(lambda: probes.isolated(SOURCE))


def test_a_dummy_that_hangs_counts_again_and_again_and_blocks_nobody() -> None:
    path, go_on = Path(), threading.Event()

    def hang() -> None:
        go_on.wait(PATIENCE_S)

    path.read = hang
    with watching(path) as probes:
        probes.meet(memory(SOURCE))
        probes.meet(memory(OTHER))
        until(lambda: probes.isolated(SOURCE))
        assert path.asked.count(SOURCE) == 1, "no second one is sent after it"
        asked = path.asked.count(OTHER)
        until(lambda: path.asked.count(OTHER) > asked + 2)
        path.read = lambda: None
        go_on.set()
        until(lambda: not probes.isolated(SOURCE))


def test_a_dummy_that_waits_for_those_that_hang_is_not_missing() -> None:
    go_on = threading.Event()
    asked: list[ReplicaId] = []

    def read(peer: PeerMemory) -> None:
        asked.append(peer.replica)
        if peer.replica != OTHER:
            go_on.wait(PATIENCE_S)

    broken = [ReplicaId(f"prefill#{n}") for n in range(2, 2 + DUMMIES_AT_ONCE)]
    probes = LinkProbes(read, LIMITS)
    for replica in broken:
        probes.meet(memory(replica))
    until(lambda: len(asked) == DUMMIES_AT_ONCE)
    probes.meet(memory(OTHER))
    until(lambda: probes.dummies_total == DUMMIES_AT_ONCE + 1)
    time.sleep(3 * LIMITS.lost_s)
    assert probes.trouble() == PathFault(lost=tuple(broken)), "nobody has even tried the other"
    go_on.set()
    until(lambda: probes.trouble() == PathFault())
    assert OTHER in asked
    probes.stop()


def test_a_source_whose_memory_is_gone_is_forgotten() -> None:
    path = Path()
    path.read = fail(HandoffExpiredError("the segment is gone"))
    with watching(path) as probes:
        probes.meet(memory(SOURCE))
        until(lambda: path.asked == [SOURCE])
        time.sleep(0.1)
        assert path.asked == [SOURCE]
        assert probes.trouble() == PathFault()
        path.read = lambda: None
        probes.meet(memory(SOURCE, "another segment"))
        until(lambda: len(path.asked) > 3)


def test_pulls_count_too() -> None:
    path = Path()
    with watching(path, LinkLimits(period_s=60.0, late_s=0.05, lost_s=0.1)) as probes:
        probes.meet(memory(SOURCE))
        for _ in range(2):
            probes.missed(SOURCE)
        probes.arrived(SOURCE)
        for _ in range(2):
            probes.missed(SOURCE)
        assert not probes.isolated(SOURCE)
        probes.missed(SOURCE)
        assert probes.isolated(SOURCE)
        probes.missed(OTHER)
        probes.arrived(OTHER)
        assert not probes.isolated(OTHER), "never met"


def test_without_dummies_nothing_is_isolated() -> None:
    path = Path()
    with watching(path, LinkLimits(period_s=0.0, late_s=0.05, lost_s=0.1)) as probes:
        probes.meet(memory(SOURCE))
        for _ in range(5):
            probes.missed(SOURCE)
        assert not probes.isolated(SOURCE), "nobody would find out that it is back"
        assert probes.trouble() == PathFault(lost=(SOURCE,))
    assert path.asked == []


def test_traffic_makes_dummies_unnecessary() -> None:
    path = Path()
    with watching(path, LinkLimits(period_s=0.4, late_s=0.05, lost_s=0.1)) as probes:
        probes.meet(memory(SOURCE))
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            probes.arrived(SOURCE)
            time.sleep(0.02)
        assert path.asked == []
