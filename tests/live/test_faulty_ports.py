"""An instance's ports with injected faults."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from hardware.topology import NpuId
from serving.config.health import ChaosConfig
from serving.errors import HandoffChecksumError
from serving.faults.injected import LOOK_EVERY_S, FaultReader, FaultWriter, InjectedFault, faults_path
from serving.ids import BlockHash, BlockId, NodeId, ReplicaId
from serving.instance.core.ports import GroupExecutor
from serving.instance.live.faulty_ports import FaultyCache, FaultyPorts, FaultyTransport, LastingSteps
from serving.values.instances import InstancePlace
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.step_plan import StepPlan, StepResult
from tests.fakes.executor import FakeExecutor
from tests.fakes.group_executor import FakeGroupExecutor
from tests.fakes.transport import FakeFabric, FakeTransport

ME = ReplicaId("decode#1")
RESULT = cast(StepResult, "result")


@dataclass
class Scene:
    """A writer of faults, a reader that sees each immediately, and the requested sleeps."""

    folder: Path
    now: float = 10.0
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = faults_path(self.folder, "abc")
        self.writer = FaultWriter(path, self.clock)
        self.reader = FaultReader(path, ME, self.clock)

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def fault(self, kind: Any, **fields: float) -> None:
        self.writer.add(InjectedFault(int(self.now), kind, ME, self.now + 100.0, **fields))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def place(folder: Path) -> InstancePlace:
    segment = folder / "cloudmatrix-ub-abc123-node-decode-1"
    return InstancePlace(ME, "decode", NodeId("node"), cast(tuple[NpuId, ...], ()), segment, "127.0.0.1", 1)


class Steps:
    """A `StepExecutor` that takes no time."""

    def execute(self, plan: StepPlan) -> StepResult:
        return RESULT


class Cache:
    """An `InstanceCache` that counts."""

    calls = 0

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        self.calls += 1
        return FetchReport(len(hashes))

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        self.calls += 1
        return StoreReport(stored=len(hashes))

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        self.calls += 1

    def facts(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def close(self) -> None:
        self.calls = -1


def transports() -> tuple[FakeTransport, FakeTransport]:
    """A source without registered blocks, and a target."""
    fabric = FakeFabric()
    source = FakeTransport(fabric, ReplicaId("prefill#1"), FakeExecutor(4, 2))
    return source, FakeTransport(fabric, ME, FakeExecutor(4, 2))


def test_without_leave_the_ports_are_as_they_are(tmp_path: Path) -> None:
    ports = FaultyPorts(ChaosConfig(least_step_s=1.0), place(tmp_path))
    steps, cache, (_, target) = Steps(), Cache(), transports()
    assert ports.executor(steps) is steps
    assert ports.link() is None
    assert ports.transport(target) is target
    assert ports.cache(cache) is cache
    assert ports.cache(None) is None


def test_with_leave_they_have_faults_in_them(tmp_path: Path) -> None:
    ports = FaultyPorts(ChaosConfig(enabled=True, least_step_s=1.0), place(tmp_path))
    assert isinstance(ports.executor(Steps()), LastingSteps)
    assert isinstance(ports.transport(transports()[1]), FaultyTransport)
    assert isinstance(ports.cache(Cache()), FaultyCache)
    assert ports.cache(None) is None
    plain = Steps()
    assert FaultyPorts(ChaosConfig(enabled=True), place(tmp_path)).executor(plain) is plain


def test_steps_last(scene: Scene) -> None:
    plan = cast(StepPlan, "plan")
    assert LastingSteps(Steps(), 5.0, scene.slept.append).execute(plan) is RESULT
    assert scene.slept == [pytest.approx(5.0, abs=0.5)]
    LastingSteps(Steps(), 0.0, scene.slept.append).execute(plan)
    assert len(scene.slept) == 1


def test_a_ranks_steps_last_and_its_peers_do_not_wait_for_it(tmp_path: Path) -> None:
    ports = FaultyPorts(ChaosConfig(enabled=True, least_step_s=1e-3), place(tmp_path))
    group = FakeGroupExecutor(Steps())
    lasting = ports.executor(group)
    assert isinstance(lasting, GroupExecutor)
    assert lasting.execute(cast(StepPlan, "plan")) is RESULT
    lasting.wake()
    lasting.serve(60.0)
    assert group.served == 1


def test_a_slow_link_delays_what_moves(scene: Scene) -> None:
    cache = FaultyCache(Cache(), scene.reader, scene.slept.append)
    assert cache.fetch("t", [BlockHash(b"1")], [BlockId(0)]) == FetchReport(1)
    assert scene.slept == []
    scene.fault("slow_link", delay_s=0.25)
    cache.fetch("t", [BlockHash(b"1")], [BlockId(0)])
    cache.store("t", [BlockHash(b"1")], [BlockId(0)])
    assert scene.slept == [0.25, 0.25]
    assert cache.facts() == {"calls": 3}
    cache.close()
    assert cache.facts() == {"calls": -1}


def test_a_wrong_bit_on_the_way_is_noticed_once(scene: Scene) -> None:
    source, target = transports()
    faulty = FaultyTransport(target, scene.reader)
    blocks = [BlockId(0), BlockId(1)]
    ticket = FaultyTransport(source, scene.reader).register("t1", blocks, [], 3)
    assert faulty.pull(ticket, 0, blocks) > 0
    scene.fault("wrong_bytes")
    with pytest.raises(HandoffChecksumError):
        faulty.pull(ticket, 1, blocks[:1])
    assert faulty.pull(ticket, 0, blocks) > 0, "each fault once"


def test_a_slow_link_is_the_transports_to_suffer(tmp_path: Path) -> None:
    link = FaultyPorts(ChaosConfig(enabled=True), place(tmp_path)).link()
    assert link is not None
    assert link(ReplicaId("prefill#1"), 4096) == 0.0
    slow = InjectedFault(1, "slow_link", ME, time.monotonic() + 100.0, delay_s=1.5)
    FaultWriter(faults_path(tmp_path, "abc123")).add(slow)
    time.sleep(2 * LOOK_EVERY_S)
    assert link(ReplicaId("prefill#1"), 4096) == 1.5
