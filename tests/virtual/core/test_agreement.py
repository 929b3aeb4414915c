"""Virtual time reproduces the measured behaviour of the live system."""

from typing import Any

import pytest

from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import Topology
from serving.ids import BlockHash, BlockId, ReplicaId, SequenceId
from serving.instance.core.events import FetchOrder
from serving.instance.core.settings import EngineRole
from serving.instance.executors.simulated_executor import DieLoad, StepTimes
from serving.virtual.event_queue import EventQueue
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.movers import ASK_S, LOOKUP_S, VirtualMovers
from serving.virtual.network import Network
from serving.virtual.simulation import cost_model
from serving.virtual.times import TableTimes
from tests.virtual.core.case import config


def test_lookups_that_an_instance_begins_together_end_one_after_the_other() -> None:
    queue = EventQueue()
    network = Network(queue, Topology(CLOUDMATRIX384), 1e9)
    pool = VirtualPool(config().kvcache, 1 << 20)
    movers = VirtualMovers(network, pool, 1 << 11, 512)
    ended: list[tuple[str, float]] = []

    def done(outcome: Any) -> None:
        ended.append((outcome[0].sequence_id, queue.now))

    for name, instance in (("a", "p0"), ("b", "p0"), ("c", "p0"), ("d", "p1")):
        order = FetchOrder(SequenceId(name), "", (BlockHash(name.encode() * 16),), (BlockId(0),))
        movers.fetch(order, ReplicaId(instance), done)
    queue.run(1.0, 1000)
    times = dict(ended)
    assert times["a"] == times["d"] == LOOKUP_S
    assert abs(times["b"] - LOOKUP_S - ASK_S) < 1e-9
    assert abs(times["c"] - LOOKUP_S - 2 * ASK_S) < 1e-9


@pytest.mark.parametrize("sequences", [1, 3, 40, 320, 5000])
@pytest.mark.parametrize(
    ("sections", "groups"),
    [
        ({}, 320),
        ({"simulation": {"decode_attention_tp": 2, "prefill_attention_tp": 4}}, 160),
        ({"simulation": {"decode_attention_tp": 8, "prefill_attention_tp": 4}}, 40),
        ({"simulation": {"expert_dies": 16}, "decode": {"npus_per_instance": 32, "max_sequences": 512}}, 48),
    ],
    ids=["a die each", "two dies", "eight dies", "experts apart"],
)
def test_steps_last_as_long_as_live_ones(sections: dict[str, dict[str, Any]], groups: int, sequences: int) -> None:
    """For dies that have their sequences alone or share them, and for those of attention with separate experts."""
    shipped = config(**sections)
    cost, dies, prefill_dies = cost_model(shipped), shipped.decode.dies_per_instance, shipped.prefill.dies_per_instance
    live = StepTimes(cost, EngineRole.DECODE, dies, shipped.simulation.drafts, prefill_dies=prefill_dies)
    virtual = TableTimes(cost, shipped.simulation, prefill_dies, dies)
    fullest = -(-sequences // groups)
    for context in (700, 6000):
        found = virtual.decode(fullest, fullest * context, sequences / groups)
        load = DieLoad(fullest, fullest * context, sequences)
        assert found == pytest.approx(live.step_s(0, load, 0, 0.0), rel=0.01 if groups == 48 else 0.005)
        assert virtual.decode(fullest, fullest * context, sequences / groups, groups) == found
    if groups != 48:
        assert virtual.chunk_on_decode_die(512, 512 * 600.0) == live.step_s(0, DieLoad(0, 0, 0), 512, 512 * 600.0, 512)
    prompts = StepTimes(cost, EngineRole.PREFILL, prefill_dies, 0, prefill_dies=prefill_dies)
    tokens, attended = sequences * 100, sequences * 100 * 700
    assert virtual.prefill(tokens, attended) == prompts.step_s(0, DieLoad(0, 0, 0), tokens, attended)
    assert virtual.prefill(9000, 9e6, 4000) == prompts.step_s(0, DieLoad(0, 0, 0), 9000, 9e6, 4000)
