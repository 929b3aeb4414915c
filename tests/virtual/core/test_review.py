"""Findings of a review: faults that overlap or hit idle units, ends without a waiter, uncounted tokens."""

from collections.abc import Sequence
from typing import cast

import pytest

from hardware.faults import Fault, FaultKind
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import Topology
from hardware.units import Seconds
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.instance.core.placeholder import PlaceholderPrompt
from serving.instance.core.sequence import KnownTokens
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.news import News, Prefilled
from serving.values.orders import Add, Release
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.virtual.event_queue import EventQueue
from serving.virtual.instance_driver import DriverContext
from serving.virtual.network import Network
from serving.virtual.npu_placement import NpuPlacement
from serving.virtual.ports import Done
from serving.virtual.prefill import PrefillInstance
from serving.virtual.report.pools import PoolSummary
from serving.virtual.report.summary import summarize
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream
from tests.virtual.core.case import burst, config, workload
from tests.virtual.core.decode_case import Listener, Steady, play

DECODE_DIE = "n12.npu0.die0"


def fault(kind: FaultKind, target: str, at_s: float, duration_s: float = 5.0, factor: float = 0.0) -> Fault:
    return Fault(Seconds(at_s), kind, target, Seconds(duration_s), factor)


def run(load: RequestStream, *faults: Fault, **sections: dict[str, object]) -> SimResult:
    return simulate(config(**sections), load, faults=faults, check=True)


def lone(at_s: float, output: int = 64, prompt: int = 4096) -> RequestStream:
    return workload([(at_s, prompt, output)])


# ---- faults on what is idle ----------------------------------------------------------------------------------------


def ttft(result: SimResult, row: int = 0) -> float:
    return result.requests.first_token_s[row] - result.requests.arrival_s[row]


def span(result: SimResult, row: int = 0) -> float:
    return result.requests.finish_s[row] - result.requests.first_token_s[row]


def test_idle_instances_are_rebuilt_long_before_their_next_request() -> None:
    one: dict[str, object] = {"replicas": 1}
    hit = run(lone(100.0), fault(FaultKind.NPU, "n0.npu0", 1.0), prefill=one)
    assert ttft(hit) == pytest.approx(ttft(run(lone(100.0), prefill=one)))
    early = run(lone(3.0), fault(FaultKind.NPU, "n0.npu0", 1.0), prefill=one)
    assert ttft(early) == pytest.approx(ttft(run(lone(3.0), prefill=one)) + 1.0 + 12.8 - 3.0, abs=0.01)
    calm = run(lone(3.0))
    hit = run(lone(3.0), fault(FaultKind.DIE, DECODE_DIE, 1.0))
    assert span(hit) == pytest.approx(span(calm) + 1.0 + 12.8 - calm.requests.first_token_s[0], abs=0.05)
    late = run(lone(100.0), fault(FaultKind.DIE, DECODE_DIE, 1.0))
    assert span(late) == pytest.approx(span(calm))


def test_the_loss_of_the_only_busy_group_stops_the_instance_too() -> None:
    hit = run(lone(0.0, 400), fault(FaultKind.DIE, DECODE_DIE, 1.0))
    assert hit.faults[0].sequences_hit == 1
    assert hit.requests.finish_s[0] > 1.0 + 12.8
    steps = next(one for one in hit.instances if one.pool == "decode")
    assert steps.output_tokens == hit.totals.tokens_generated
    assert steps.busy_s > 12.8


def test_a_lost_package_costs_a_prompt_one_attempt_and_nothing_if_nobody_waits() -> None:
    hit = run(lone(0.0, prompt=100_000), fault(FaultKind.NPU, "n0.npu0", 0.2), prefill={"replicas": 1})
    assert list(hit.requests.attempts) == [2]
    assert hit.faults[0].sequences_hit == 1
    late: dict[str, object] = {"request_timeout_s": 0.1}
    hit = run(lone(0.0, prompt=100_000), fault(FaultKind.NPU, "n0.npu0", 0.2), prefill={"replicas": 1}, gateway=late)
    assert list(hit.requests.outcome) == [Outcome.FAILED]
    assert hit.faults == []
    two = workload([(0.0, 100_000, 8), (0.15, 4096, 8)])
    hit = run(two, fault(FaultKind.NPU, "n0.npu0", 0.2), prefill={"replicas": 1}, gateway=late)
    assert hit.faults[0].sequences_hit == 1


# ---- faults that overlap -------------------------------------------------------------------------------------------


def test_what_two_faults_hit_is_whole_when_both_are_over() -> None:
    load = burst(40, every_s=1.0)
    link = "n0.npu0.die0"
    hit = run(
        load,
        fault(FaultKind.RDMA_LINK, link, 0.0, 5.0, 0.0),
        fault(FaultKind.RDMA_LINK, link, 3.0, 5.0, 0.0),
        prefill={"replicas": 1},
    )
    calm = run(load, prefill={"replicas": 1})
    assert list(hit.requests.outcome) == [Outcome.FINISHED] * 40
    assert hit.requests.finish_s[-1] == pytest.approx(calm.requests.finish_s[-1])
    placement = NpuPlacement(Topology(CLOUDMATRIX384), 8)
    (npu,) = placement.npus[:1]
    placement.fail(npu)
    placement.fail(npu)
    placement.repair(npu)
    assert (placement.total, placement.idle) == (7, 7)
    placement.repair(npu)
    assert (placement.total, placement.idle) == (8, 8)
    load = burst(60, output=8, every_s=1.0)
    hit = run(load, fault(FaultKind.GATEWAY, "gateway0", 4.5, 30.0), fault(FaultKind.GATEWAY, "gateway0", 10.0, 2.0))
    failed = [row for row, outcome in enumerate(hit.requests.outcome) if outcome == Outcome.FAILED]
    assert failed == list(range(5, 35))


@pytest.mark.parametrize(("kind", "target"), [(FaultKind.NODE, "n0"), (FaultKind.MEMORY_SERVER, "memory1")])
def test_what_is_lost_twice_ends_no_simulation(kind: FaultKind, target: str) -> None:
    twice = [fault(kind, target, at, 30.0) for at in (1.0, 2.0)]
    assert list(run(burst(60), *twice).requests.outcome) == [Outcome.FINISHED] * 60


def test_instances_that_start_while_a_subplane_is_gone_are_slow_until_it_is_back() -> None:
    load = burst(300, output=8, every_s=0.5)
    hit = run(load, fault(FaultKind.UB_SUBPLANE, "sn0.subplane3", 0.0, 120.0), fault(FaultKind.NODE, "n0", 1.0, 10.0))
    assert list(hit.requests.outcome) == [Outcome.FINISHED] * 300
    assert len([one for one in hit.instances if one.pool == "prefill"]) == 7


def test_a_straggler_slows_for_as_long_as_it_lasts_and_a_group_is_as_slow_as_its_slowest_die() -> None:
    calm = run(lone(0.0, 600))
    brief = run(lone(0.0, 600), fault(FaultKind.STRAGGLER, DECODE_DIE, 1.0, 2.0, 3.0))
    assert span(brief) - span(calm) == pytest.approx(2.0 * 2.0 / 3.0, abs=0.05)
    # Two slow dies of a group are waited for at the same time; two faults of one die slow it twice.
    dies = (DECODE_DIE, "n12.npu0.die1", "n20.npu3.die0")
    slow = [
        fault(FaultKind.STRAGGLER, die, 0.0, 600.0, factor) for die, factor in zip(dies, (2.0, 3.0, 2.0), strict=True)
    ]
    assert span(run(lone(0.0, 600), *slow)) == pytest.approx(3.0 * span(calm), rel=0.01)
    twice = [fault(FaultKind.STRAGGLER, DECODE_DIE, 0.0, 600.0, 2.0)] * 2
    assert span(run(lone(0.0, 600), *twice)) == pytest.approx(4.0 * span(calm), rel=0.01)


def test_an_instance_that_starts_on_a_slow_die_is_slow_as_well() -> None:
    """The first node fails, so its instance returns on idle NPUs, one of which is slow."""
    load, lost = lone(200.0, 8), fault(FaultKind.NODE, "n0", 1.0, 3600.0)
    only: dict[str, object] = {"replicas": 1, "npus_per_instance": 16}
    decode: dict[str, object] = {"npus_per_instance": 32}
    slow = fault(FaultKind.STRAGGLER, "n7.npu0.die0", 0.0, 600.0, 3.0)
    calm, hit = (run(load, lost, *more, prefill=only, decode=decode) for more in ((), (slow,)))
    assert ttft(hit) == pytest.approx(3.0 * ttft(calm), rel=0.1)
    over = run(load, lost, fault(FaultKind.STRAGGLER, "n7.npu0.die0", 0.0, 100.0, 3.0), prefill=only, decode=decode)
    assert ttft(over) == pytest.approx(ttft(calm))


def test_a_fault_costs_no_more_than_it_hits() -> None:
    load, lost = lone(0.0, 600), fault(FaultKind.DIE, "n12.npu1.die0", 1.0)
    once = run(load, lost)
    assert span(run(load, lost, fault(FaultKind.NETWORK_GLITCH, "sn0", 3.0, 0.0, 1.0))) < span(once) + 0.1
    load = lone(0.0, 100)
    end_s = run(load).totals.end_s
    hit = run(
        workload([(0.0, 4096, 100), (30.0, 4096, 8)]), fault(FaultKind.NODE, "n0", 29.0, 30.0), prefill={"replicas": 2}
    )
    assert hit.faults[0].npu_seconds_lost <= 16 * (hit.totals.end_s - 29.0) * (1 + 1e-9)
    assert end_s < 29.0
    hit = run(burst(10), fault(FaultKind.GATEWAY, "gateway3", 0.2))
    assert hit.faults[0].sequences_hit == 0


# ---- links ---------------------------------------------------------------------------------------------------------


def test_bytes_over_rdma_are_counted_though_their_source_was_lost() -> None:
    faults = [fault(FaultKind.RDMA_LINK, f"n{n // 16}.npu{n % 16 // 2}.die{n % 2}", 0.0, 50.0, 0.01) for n in range(32)]
    hit = run(burst(20, every_s=0.01), *faults, fault(FaultKind.NODE, "n0", 1.2, 30.0))
    assert sum(hit.requests.attempts) > 20
    assert hit.timeline[-1].rdma_bytes == hit.totals.kv_bytes_handed_off


def test_a_port_that_gets_wider_ends_what_crosses_it_sooner() -> None:
    queue, topology = EventQueue(), Topology(CLOUDMATRIX384)
    network, ended = Network(queue, topology, 1e9), {}

    def end(name: str) -> None:
        ended[name] = queue.now

    small, large = ReplicaId("prefill-0"), ReplicaId("decode-0")
    dies = tuple(topology.die_ids())
    network.join(small, dies[:2], 1)
    network.to_pool(small, 10**9, 0.0, end, "old")
    network.leave(small)
    queue.at(0.5, lambda _: network.join(large, dies[:20], 10))
    queue.at(0.6, lambda _: network.to_pool(large, 10**6, 0.0, end, "new"))
    queue.run()
    assert ended == pytest.approx({"old": 0.55, "new": 0.6001})


def test_blocks_that_a_store_gives_back_let_the_next_prompt_in() -> None:
    """Even without another event: the previous prompt has been pulled, and no step runs."""
    queue = EventQueue()
    listener, movers = Releasing(queue), SlowStores(queue)
    settings = EngineSettings(EngineRole.PREFILL, 16, 256, 4, watermark_blocks=0, pool=True, max_store_blocks=64)
    around = DriverContext(queue, Steady(), lambda _: listener, movers, 1)
    instance = PrefillInstance(ReplicaId("p"), "prefill", 1, settings, 8, around, lambda _step: 1.0)
    listener.instance = instance
    for number in range(2):
        prompt = cast("tuple[int, ...]", PlaceholderPrompt(112))
        hashes = tuple(BlockHash(bytes([number, block])) for block in range(7))
        spec = SequenceSpec(SequenceId(f"g0-{number}/0@1"), prompt, SamplingParams(), prompt_hashes=hashes)
        instance.take(Add(spec))
    queue.run(until=25.0)
    assert listener.at_s == {"g0-0/0@1": 1.0, "g0-1/0@1": 12.0}


class Releasing(Listener):
    """Releases prefilled sequences immediately."""

    instance: PrefillInstance

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(queue)
        self.at_s: dict[str, float] = {}

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        for one in news:
            assert isinstance(one, Prefilled)
            self.at_s[one.sequence_id] = self.queue.now
            self.queue.at(self.queue.now, self._release, one.ticket.ticket_id)

    def _release(self, ticket_id: str) -> None:
        self.instance.take(Release(ticket_id))


class SlowStores:
    """Finds nothing; stores in ten seconds."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def pull(self, order: object, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        raise AssertionError("nobody pulls")

    def fetch(self, order: object, instance: ReplicaId, done: Done) -> None:
        self._queue.at(self._queue.now, done, (order, FetchReport(0)))

    def store(self, order: object, instance: ReplicaId, done: Done) -> None:
        self._queue.at(self._queue.now + 10.0, done, order)


# ---- many iterations as one step -----------------------------------------------------------------------------------


def test_an_answer_that_fills_the_context_ends_in_the_iteration_that_fills_it() -> None:
    arrivals = [(0, 970, 300)]  # of 1000 tokens
    (one_by_one, _), (together, fast) = (play(arrivals, 1, 80, 1, at_once=n) for n in (1, 1 << 30))
    assert together.ends == one_by_one.ends
    assert together.tokens_of == one_by_one.tokens_of == {"g0-0/0@1": 30}
    assert fast.meter.output_tokens == 29


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_the_end_comes_with_the_last_request_and_prompts_are_counted_wherever_computed() -> None:
    result = run(workload([(0.0, 4096, 8), (5.0, 131_072, 8)]))
    assert list(result.requests.outcome) == [Outcome.FINISHED, Outcome.FAILED]
    assert result.totals.end_s < 6.0
    faults = [fault(FaultKind.NODE, f"n{n}", 0.5, 500.0) for n in range(12)]
    result = run(workload([(1.0, 4096, 8)]), *faults)
    totals = result.totals
    assert list(result.requests.outcome) == [Outcome.FINISHED]
    assert totals.tokens_computed + totals.tokens_cached == totals.prompt_tokens_in == 4096


def pool_of(result: SimResult, name: str) -> PoolSummary:
    return next(one for one in summarize(result).pools if one.name == name)


@pytest.mark.parametrize("stop_s", [0.3, 1.0, 3.0])
def test_a_step_that_is_under_way_at_the_end_counts_as_far_as_it_is(stop_s: float) -> None:
    """It computes 100,000 tokens in 4.4 s."""
    whole = simulate(config(prefill={"replicas": 1}), lone(0.0, prompt=100_000))
    cut = simulate(config(prefill={"replicas": 1}), lone(0.0, prompt=100_000), stop_s=stop_s, timeline_step_s=0.1)
    assert pool_of(cut, "prefill").busy_share == pytest.approx(1.0, abs=0.02)
    part = cut.totals.end_s / whole.requests.first_token_s[0]
    assert cut.totals.tokens_computed == pytest.approx(100_000 * part, rel=0.02)
    assert cut.totals.expert_bytes == pytest.approx(whole.totals.expert_bytes * part, rel=0.05)


def test_steps_that_their_instance_does_not_survive_count_as_far_as_they_came() -> None:
    one: dict[str, object] = {"replicas": 1}
    hit = run(lone(0.0, prompt=100_000), fault(FaultKind.NODE, "n0", 1.0), prefill=one)
    lost = next(instance for instance in hit.instances if instance.name == "prefill-0")
    assert lost.stopped_s == 1.0
    assert lost.busy_s == pytest.approx(1.0, abs=0.01)
    assert lost.prompt_tokens == pytest.approx(100_000 / 4.44, rel=0.02)
    hit = run(lone(0.0, 400), fault(FaultKind.NODE, "n12", 1.0))
    lost = next(instance for instance in hit.instances if instance.name == "decode-0")
    assert lost.busy_s < 1.0
    for_ever = fault(FaultKind.LAUNCH_JITTER, "n12", 0.5, float("inf"))
    hit = run(lone(0.0, 400), for_ever, fault(FaultKind.NODE, "n12", 2.0))
    lost = next(instance for instance in hit.instances if instance.name == "decode-0")
    assert 1.0 < lost.busy_s < 2.0


def test_no_plane_carries_more_than_it_can() -> None:
    """At any polling rate: tokens are sent to experts while steps run, not when they start or end."""
    load = workload([(0.2 * n, 40_000, 300) for n in range(20)])
    result = simulate(config(prefill={"replicas": 1}), load, timeline_step_s=0.01)
    plain = simulate(config(prefill={"replicas": 1}), load, timeline_step_s=10.0)
    assert result.totals.expert_bytes == plain.totals.expert_bytes
    shares = [point.ub_share for point in result.timeline]
    assert min(shares) >= 0.0
    assert max(shares) < 0.1


# ---- policy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [slice(None, None, -1), slice(6, 2), slice(4, 1, -1), slice(1, 7, 2), slice(2, 5)])
def test_known_tokens_are_cut_like_any_sequence(cut: slice) -> None:
    tokens: Sequence[int] = KnownTokens((0, 1, 2), [3, 4, 5, 6, 7])
    assert list(tokens[cut]) == list(range(8))[cut]
    assert list(KnownTokens((0, 1, 2), [])[cut]) == list(range(3))[cut]
