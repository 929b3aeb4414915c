"""A segment between processes: a state machine in which owners die, races, and kills at any moment."""

import contextlib
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hardware.errors import UbFullError, UbStaleError
from hardware.ub import UbRegion, UbSegment
from hardware.ub.region import PAGE, data_start
from hardware.ub.segment import MAX_REGIONS
from hardware.units import MIB
from tests.hardware.ub.processes import Processes

PAGES = 8


@dataclass
class Held:
    """A region that must be in the table, and its fill byte."""

    offset: int
    nbytes: int
    fill: int
    region: UbRegion | None  # None if a child holds it
    alive: bool = True


def reclaim_dead(segment: UbSegment) -> None:
    """Reclaim the regions of dead processes, which every `allocate` does first."""
    with contextlib.suppress(UbFullError):
        segment.release(segment.allocate(1, "reclaimer"))


class SegmentMachine(RuleBasedStateMachine):
    """This process and its children allocate, fill and free regions; children die; no byte is ever shared."""

    processes: Processes

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cloudmatrix-test-", dir="/dev/shm"))
        self.segment = UbSegment.create(self.folder / "ub", PAGES * PAGE)
        self.held: dict[int, Held] = {}
        self.children: dict[int, int] = {}
        self.fill = 0

    def fits(self, nbytes: int) -> bool:
        taken = {page for held in self.held.values() if held.alive for page in self.pages(held.offset, held.nbytes)}
        first = data_start(MAX_REGIONS) // PAGE
        span = -(-nbytes // PAGE)
        return any(not taken & set(range(p, p + span)) for p in range(first, first + PAGES - span + 1))

    @staticmethod
    def pages(offset: int, nbytes: int) -> range:
        return range(offset // PAGE, -(-(offset + nbytes) // PAGE))

    def forget_dead(self) -> None:
        self.held = {generation: held for generation, held in self.held.items() if held.alive}

    @initialize()
    def empty(self) -> None:
        assert self.segment.regions() == ()

    @rule(nbytes=st.integers(1, 5 * PAGE))
    def allocate(self, nbytes: int) -> None:
        self.fill = (self.fill + 1) % 256
        fits = self.fits(nbytes)
        if fits:
            region = self.segment.allocate(nbytes, "parent")
            self.segment.view(region)[:] = bytes([self.fill]) * nbytes
            self.forget_dead()
            self.held[region.generation] = Held(region.offset, nbytes, self.fill, region)
        else:
            with pytest.raises(UbFullError):
                self.segment.allocate(nbytes, "parent")
            self.forget_dead()

    @rule(nbytes=st.integers(1, 3 * PAGE))
    def child_allocates(self, nbytes: int) -> None:
        self.fill = (self.fill + 1) % 256
        fits = self.fits(nbytes)
        pid, got = self.processes.run("allocate", path=str(self.segment.path), nbytes=nbytes, fill=self.fill)
        self.forget_dead()
        if fits:
            self.held[got["generation"]] = Held(got["offset"], nbytes, self.fill, None)
            self.children[pid] = got["generation"]
        else:
            assert got["error"] == "UbFullError"
            self.processes.kill(pid)

    @precondition(lambda self: self.children)
    @rule(data=st.data(), reap=st.booleans())
    def child_dies(self, data: st.DataObject, reap: bool) -> None:
        pid = data.draw(st.sampled_from(sorted(self.children)))
        self.processes.kill(pid, reap=reap)
        self.held[self.children.pop(pid)].alive = False

    @precondition(lambda self: any(held.region for held in self.held.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        own = sorted(generation for generation, held in self.held.items() if held.region)
        generation = data.draw(st.sampled_from(own))
        region = self.held.pop(generation).region
        assert region is not None
        self.segment.release(region)
        with pytest.raises(UbStaleError):
            self.segment.view(region)

    @rule()
    def reclaim(self) -> None:
        dead = {generation for generation, held in self.held.items() if not held.alive}
        before = {region.generation for region in self.segment.regions()}
        reclaim_dead(self.segment)
        assert before - {region.generation for region in self.segment.regions()} == dead
        self.forget_dead()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.segment.check()
        assert {region.generation for region in self.segment.regions()} == set(self.held)
        for generation, held in self.held.items():
            content = self.segment.read(held.offset, held.nbytes, generation)
            assert bytes(content) == bytes([held.fill]) * held.nbytes

    def teardown(self) -> None:
        for pid in self.children:
            self.processes.kill(pid)
        reclaim_dead(self.segment)
        for held in self.held.values():
            if held.region:
                self.segment.release(held.region)
        assert self.segment.used_bytes == 0
        self.segment.remove()
        shutil.rmtree(self.folder)


def test_segment_machine(processes: Processes) -> None:
    SegmentMachine.processes = processes
    case = SegmentMachine.TestCase
    case.settings = settings(
        max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()


def test_a_child_sees_the_bytes_and_we_see_its(shm: Path, processes: Processes) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        region = segment.allocate(6, "parent")
        segment.view(region)[:] = b"prompt"
        reader, seen = processes.run("read", path=str(segment.path), offset=region.offset, nbytes=6)
        assert bytes.fromhex(seen["hex"]) == b"prompt"
        writer, got = processes.run("allocate", path=str(segment.path), nbytes=100, fill=42, owner="prefill-1")
        assert bytes(segment.read(got["offset"], 100, got["generation"])) == b"\x2a" * 100
        assert [region.process.pid for region in segment.regions()] == [os.getpid(), writer]
        assert segment.snapshot()["owners"] == {"parent": 6, "prefill-1": 100}
        for pid in (reader, writer):
            processes.kill(pid)


def test_what_a_killed_process_held_is_given_out_again(shm: Path, processes: Processes) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        pid, got = processes.run("allocate", path=str(segment.path), nbytes=MIB, fill=1)
        with pytest.raises(UbFullError, match="child 1 MiB"):
            segment.allocate(1, "parent")
        processes.kill(pid)
        assert segment.used_bytes == MIB  # not polled yet
        region = segment.allocate(MIB, "parent")
        assert region.generation > got["generation"]
        with pytest.raises(UbStaleError):
            segment.read(got["offset"], 1, got["generation"])
        segment.check()


def test_many_processes_at_once_never_share_a_byte(shm: Path, processes: Processes) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        pids = [processes.start("churn", path=str(segment.path), rounds=150, seed=seed) for seed in range(4)]
        for pid in pids:
            assert processes.result(pid) == {"rounds": 150}
            processes.kill(pid)
        segment.check()
        assert segment.used_bytes == 0


def test_a_fork_may_use_the_same_object(shm: Path, processes: Processes) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        pid, result = processes.run("churn_with_forked_child", path=str(segment.path), rounds=150)
        assert result == {"rounds": 150, "child": 0}
        processes.kill(pid)
        segment.check()
        assert segment.used_bytes == 0


def test_a_kill_at_any_moment_leaves_a_whole_table(shm: Path, processes: Processes) -> None:
    dice = random.Random(7)
    with UbSegment.create(shm / "ub", MIB) as segment:
        for _ in range(20):
            pids = [processes.start("churn", path=str(segment.path), rounds=10**6, seed=seed) for seed in (1, 2)]
            time.sleep(dice.uniform(0.001, 0.01))
            for pid in pids:
                processes.kill(pid)
            segment.check()
            reclaim_dead(segment)
            assert segment.used_bytes == 0
