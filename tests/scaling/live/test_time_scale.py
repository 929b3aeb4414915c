"""Simulated time that runs slower or faster than real time: the policy gets the same input and makes the same
decisions.

The traffic is a small model of the pools in virtual time. The policy receives it either directly, as in
`cloudmatrix simulate`, or like in a live cluster: reports of gateways, counters of instances and replicas of Serve,
through the scaling board, on a real clock, while the instances' time runs `time_scale` times as fast.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from serving.cluster.gcs_store import KeptValues
from serving.config.serve import ServeConfig
from serving.config.simulation import SimulationConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.capacity import LEVEL_S
from serving.scaling.core.cluster_snapshot import SeenDeployment, SeenMember
from serving.scaling.core.decision import Scaler, ScalingDecision
from serving.scaling.core.signals import LEAST_PERIOD_S, PolicyTime
from serving.scaling.live.autoscaler_replica import RisingTraffic
from serving.scaling.live.board import ScalingBoard
from serving.values.scaling_operations import HoldPool, ReadPools
from serving.values.signals import PoolSignals, ScalingSignals
from serving.values.traffic import BOUNDS_S, GatewayReport
from tests.scaling.core.fluid import Fluid, FluidPool, burst
from tests.scaling.live.case import STARTING, FakeCluster, config, deployment, member, nodes, replica

SCALES = (0.25, 1.0, 16.0)
"""Powers of two: times are the same to the last bit."""
START_S, TOKENS_PER_S, SEATS = 10.0, 24_576.0, 100
BUCKETS = (0,) * (len(BOUNDS_S) + 1)
BEGIN_S, SECONDS = 64.0, 480


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all calls of a board."""
    with asyncio.Runner() as loop:
        yield loop


def settings(scale: float, policy: str = "slo") -> ServeConfig:
    """384 NPUs, all of them simulated."""
    base = config(policy, hold_s=60.0, max_prefill=24, max_decode=10, min_kvcache=0, requests_per_instance=4.0)
    return replace(
        base,
        prefill=replace(base.prefill, npus_per_instance=4, max_sequences=SEATS),
        decode=replace(base.decode, npus_per_instance=8, max_sequences=SEATS),
        kvcache=replace(base.kvcache, replicas=0),
        engine=replace(base.engine, executor="simulated"),
        simulation=SimulationConfig(time_scale=scale),
    )


def traffic() -> Fluid:
    """Eight requests of 24,000 tokens a second for some minutes, one a second before and after."""
    return Fluid(
        burst(1.0, 8.0, start=BEGIN_S + 100.0, length=300.0),
        seed=3,
        start_s=START_S,
        prompt=24_000.0,
        tokens_per_s=TOKENS_PER_S,
        prefill=FluidPool("prefill", 2, 4, high=24),
        decode=FluidPool("decode", 1, 8, high=10),
        now=BEGIN_S,
    )


def scaler_of(config: ServeConfig) -> Scaler:
    assert config.autoscaler.policy != "none"
    return make_scaler(config.autoscaler.policy, config.slo, config.autoscaler)


@dataclass
class Virtual:
    """A scaler in virtual time. `heard`: its inputs."""

    config: ServeConfig
    heard: list[ScalingSignals] = field(default_factory=list)
    scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        self.scaler = scaler_of(self.config)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Decide like `Scaler.decide`, with defaults for inputs that the model lacks."""
        seats = {"seats": SEATS, "crowd": float(SEATS), "max_sequences": float(SEATS)}
        pools = tuple(structs.replace(pool, **seats) for pool in signals.pools)
        self.heard.append(structs.replace(signals, pools=pools))
        return self.scaler.decide(self.heard[-1])


@dataclass
class Live:
    """A scaler called by a live system. `heard`: its inputs."""

    config: ServeConfig
    runner: asyncio.Runner
    heard: list[ScalingSignals] = field(default_factory=list)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self.board = ScalingBoard(self.config, self.cluster, KeptValues(), self.cluster.clock)
        self.rising, self.scaler = RisingTraffic(), scaler_of(self.config)
        self.cluster.snapshot = replace(self.cluster.snapshot, nodes=nodes(8, npus=48))
        self._before()

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Decide like any `Scaler`; the signals pass through the board."""
        deployments = {pool.pool: self._replicas(pool) for pool in signals.pools}
        self._show(signals.now, deployments, [self._told(pool) for pool in signals.pools])
        self.board.report(GatewayReport("g", signals.traffic, 0, BUCKETS, BUCKETS))
        self.heard.append(self.rising.upon(self.runner.run(self.board.next_signals(0.0))))
        decision = self.scaler.decide(self.heard[-1])
        self.runner.run(self.board.apply(decision.changes))
        return decision

    def _before(self) -> None:
        """One start that takes as long as all of the model's do, and work on prompts at their speed."""
        first, new = replica("decode0"), replica("decode1", phase=STARTING, started_at=self._real(1.0))
        told = [member("prefill0", "prefill", prompt_tokens_total=0, busy_s=0.0)]
        self._poll(0.0, {"decode": deployment(1, first)}, told)
        self._poll(1.0, {"decode": deployment(1, first, new)}, [self._worked("prefill")])
        self._poll(1.0 + START_S, {"decode": deployment(1, first, replica("decode1"))}, [])

    def _poll(self, at: float, deployments: Mapping[str, SeenDeployment], members: Sequence[SeenMember]) -> None:
        self._show(at, deployments, members)
        self.runner.run(self.board.poll())

    def _show(self, at: float, deployments: Mapping[str, SeenDeployment], members: Sequence[SeenMember]) -> None:
        self.cluster.now = self._real(at)
        named = {one.name.partition("#")[2]: one for one in members}
        self.cluster.snapshot = replace(self.cluster.snapshot, deployments=deployments, members=named)

    @staticmethod
    def _replicas(pool: PoolSignals) -> SeenDeployment:
        names = [f"{pool.pool}{i}" for i in range(pool.running + pool.starting)]
        serve = [replica(name) for name in names[: pool.running]]
        return deployment(pool.target, *serve, *(replica(name, phase=STARTING) for name in names[pool.running :]))

    def _told(self, pool: PoolSignals) -> SeenMember:
        """Report of a pool's first instance, which has the load of all of them."""
        facts: dict[str, Any] = {
            "waiting": pool.waiting,
            "running": pool.sequences - pool.waiting,
            "queued_tokens": pool.queued_tokens,
            "kv_blocks_used": pool.kv_blocks_used,
            "kv_blocks_total": pool.kv_blocks_total,
        }
        if pool.pool == "prefill":
            facts |= self._worked(pool.pool).facts
        return member(f"{pool.pool}0", pool.pool, "1", **facts)

    def _worked(self, pool: str) -> SeenMember:
        self.busy_s += 64 * LEVEL_S  # what was before counts for nothing: the speed is exact
        tokens = round(TOKENS_PER_S * self.busy_s)
        return member(f"{pool}0", pool, prompt_tokens_total=tokens, busy_s=self.busy_s, steps_total=tokens // 1000)

    def _real(self, virtual_s: float) -> float:
        return virtual_s / self.config.time_scale


@pytest.mark.parametrize(("scale", "policy"), [(0.25, "slo"), (16.0, "slo"), (0.25, "requests")])
def test_signals_and_decisions_are_those_of_virtual_time(scale: float, policy: str, runner: asyncio.Runner) -> None:
    """At 0.25 prompts seemed to arrive at a quarter of their rate, and no instance was started for them."""
    virtual, live = Virtual(settings(1.0, policy)), Live(settings(scale, policy), runner)
    expected, there = traffic(), traffic()
    expected.run(virtual, until=BEGIN_S + SECONDS)
    there.run(live, until=BEGIN_S + SECONDS)
    assert len(live.heard) == len(virtual.heard) == SECONDS
    for told, as_it_is in zip(live.heard, virtual.heard, strict=True):
        assert told == as_it_is
    assert there.changes == expected.changes
    assert max(change.target for _, change in there.changes if change.pool == "prefill") > 8
    assert (there.ttft_met, there.ttft_missed, there.npu_s) == (expected.ttft_met, expected.ttft_missed, expected.npu_s)


@pytest.mark.parametrize("scale", SCALES)
def test_a_hold_by_hand_is_real_time(scale: float, runner: asyncio.Runner) -> None:
    live = Live(settings(scale), runner)
    live.decide(traffic().signals())
    began = live.cluster.now
    runner.run(live.board.answer(HoldPool("decode", 600.0, "cli")))
    for passed_s, left_s in ((0.0, 600.0), (100.0, 500.0), (599.0, 1.0)):
        live.cluster.now = began + passed_s
        signals = runner.run(live.board.next_signals(0.0))
        assert signals.pool("decode").held_until - signals.now == left_s * scale
    live.cluster.now = began + 601.0
    assert runner.run(live.board.next_signals(0.0)).pool("decode").held_until == 0.0


def test_only_simulated_devices_have_a_time_of_their_own() -> None:
    simulated = settings(0.25)
    real = replace(simulated, engine=replace(simulated.engine, executor="torch"))
    assert (simulated.time_scale, real.time_scale) == (0.25, 1.0)


@pytest.mark.parametrize(("scale", "period_s", "real_s"), [(0.25, 1.0, 4.0), (1.0, 0.1, 0.1), (1.0, 3.0, 3.0)])
def test_looks_are_a_period_of_the_policy_apart(scale: float, period_s: float, real_s: float) -> None:
    assert PolicyTime(scale).real_period_s(period_s) == real_s


def test_fast_time_is_not_looked_at_more_often_than_there_are_news() -> None:
    assert PolicyTime(1000.0).real_period_s(1.0) == LEAST_PERIOD_S
    assert PolicyTime(1000.0).real_period_s(0.1) == 0.1, "unless somebody asks for it"
    assert PolicyTime(4.0).real_period_s(10.0) == 2.5


def test_a_slow_autoscaler_is_alive_between_two_looks(runner: asyncio.Runner) -> None:
    live = Live(settings(0.25), runner)
    live.decide(traffic().signals())
    live.cluster.now += 11.0
    row = live.board.read(ReadPools())["autoscaler"]
    assert (row["alive"], row["period_s"]) == (True, 4.0)
