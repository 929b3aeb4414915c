"""Pools that change their size in virtual time: starting takes its time, leaving waits for the last sequence."""

import math

from hardware.cost.cost_model import CostModel
from serving.policy.target_tracking import TargetTracker
from serving.sim.core.decode import DecodeInstance
from serving.sim.core.prefill import PrefillInstance
from serving.sim.core.supernode import Supernode

ENGINE_START_S = 30.0
"""An engine without weights. Source: xDeepServe's parent system, 26-32 s; none if instances are kept pre-warmed."""
_DRAIN_LOOK_S = 1.0


def start_up_s(cost: CostModel, source: str) -> float:
    """From the decision to a serving instance [s].

    Args:
        source: `[simulation] model_load`.
    """
    if source == "prewarmed":
        return float(cost.model_load_s("prewarmed"))
    return ENGINE_START_S + float(cost.model_load_s("storage" if source == "storage" else "pool"))


class Scaling:
    """Changes pools; with a policy, by itself.

    Args:
        capacity: work that one instance of a pool can do: prompt tokens per second, sequences at a time.
    """

    def __init__(self, node: Supernode, capacity: dict[str, float]) -> None:
        config = node.config.autoscaler
        self._node = node
        self._capacity = capacity
        self._start_s = start_up_s(node.cost, node.config.simulation.model_load)
        self.starting = {"prefill": 0, "decode": 0}
        self._trackers = {
            "prefill": TargetTracker(config.utilisation, config.hold_s, 1, config.max_prefill),
            "decode": TargetTracker(config.utilisation, config.hold_s, 1, config.max_decode),
        }
        self._computed_before = 0
        self._wanted_before = 0

    def follow_load(self) -> None:
        """Look now and every period from now on. Effects: an event is always ahead while requests are."""
        self._node.queue.at(self._node.queue.now + self._node.config.autoscaler.period_s, self._look)

    def set_target(self, pool: str, target: int, reason: str) -> None:
        """Start or drain instances until a pool has `target` of them."""
        node = self._node
        serving = [one for one in node.instances(pool) if not one.draining]
        missing = target - len(serving) - self.starting[pool]
        if missing:
            change = f"{len(serving) + self.starting[pool]} -> {target}"
            node.book.decided(node.queue.now, "scale", pool, change, reason)
        for _ in range(missing):
            self.starting[pool] += 1
            node.queue.at(node.queue.now + self._start_s, self._started, pool)
        for instance in sorted(serving, key=lambda one: one.sequences)[: max(0, -missing)]:
            instance.draining = True
            node.queue.at(node.queue.now, self._drained, instance)

    def _started(self, pool: str) -> None:
        self.starting[pool] -= 1
        node = self._node
        needed = node.config.pools[pool].npus_per_instance
        if node.placement.idle < needed:
            reason = f"{needed} NPUs are needed, {node.placement.idle} are free"
            node.book.decided(node.queue.now, "refuse to scale", pool, "no", reason)
            return
        node.start_instance(pool)

    def _drained(self, instance: PrefillInstance | DecodeInstance) -> None:
        if not instance.alive:
            return
        if instance.sequences:
            self._node.queue.at(self._node.queue.now + _DRAIN_LOOK_S, self._drained, instance)
        else:
            self._node.stop_instance(instance)

    def _look(self, _: object) -> None:
        node = self._node
        loads = {"prefill": self._prefill_load(), "decode": self._decode_load()}
        for pool, load in loads.items():
            there = sum(not one.draining for one in node.instances(pool)) + self.starting[pool]
            decision = self._trackers[pool].decide(node.queue.now, there, load)
            target = min(decision.target, there + node.placement.idle // node.config.pools[pool].npus_per_instance)
            if target != there:
                self.set_target(pool, target, decision.reason)
        if node.busy:
            self.follow_load()

    def _prefill_load(self) -> float:
        """What arrived since the last look, and what waits, to be done within the promised time."""
        node, period = self._node, self._node.config.autoscaler.period_s
        queued = sum(one.status()[0] for one in node.prefills)
        computed = node.prompt_tokens_computed()
        arrived = max(0, computed - self._computed_before + queued - self._wanted_before)
        self._computed_before, self._wanted_before = computed, queued
        rate = arrived / period + queued / max(period, node.config.slo.ttft_s)
        return rate / self._capacity["prefill"]

    def _decode_load(self) -> float:
        sequences = sum(one.sequences for one in self._node.decodes)
        fill = max((one.kv_used() / one.kv_blocks for one in self._node.decodes), default=0.0)
        return max(sequences / self._capacity["decode"], fill * len(self._node.decodes))


def capacities(cost: CostModel, node: Supernode) -> dict[str, float]:
    """Work that one instance of each pool can do within the promised times, by the cost model."""
    config = node.config
    tokens = float(config.prefill.max_step_tokens)
    prompt = 4096.0
    step = node.times.prefill(tokens, tokens * prompt / 2)
    dies = config.decode.dies_per_instance
    batch = cost.max_batch(
        config.slo.tpot_s, prompt, dies=dies, drafts=config.simulation.drafts, acceptance=config.simulation.acceptance
    )
    sequences = max(1, min(config.decode.max_sequences, math.floor(batch * config.decode.npus_per_instance)))
    return {"prefill": tokens / step, "decode": float(sequences)}
