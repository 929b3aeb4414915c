"""Faults of processes in virtual time: kills, freezes and slow links of instances, memory servers and gateways.

kill     the instance is lost, its requests are resubmitted; a replacement is up after the restart of an engine
freeze   ├─ stalled ──────┬─ `silence_s`: gateways resubmit its requests ───────┬─ `replaced_after_s`: as a kill
         └ continues      └ thaws later: empty, and gateways use it again       └ does not thaw
         a frozen memory server first delays requests, then leaves the ring; when thawed it returns with its blocks
slow_link  every handoff, fetch and store of the instance takes longer
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from hardware.faults import DURATIONS, Fault, FaultKind, recovery_time
from serving.errors import LedgerError
from serving.faults.schedule import choose
from serving.ids import ReplicaId
from serving.values.health import freeze_outcome
from serving.values.orders import Cancel
from serving.virtual.decode import DecodeInstance
from serving.virtual.prefill import PrefillInstance
from serving.virtual.supernode import Supernode

_Instance = PrefillInstance | DecodeInstance


@dataclass(slots=True)
class FaultCost:
    """Cost of a fault so far."""

    hit: int = 0
    tokens: int = 0
    npus: int = 0
    """NPUs of the instances that are stalled until recovery."""
    still_s: float = 0.0
    """Duration of that stall [s]."""


class ProcessFaults:
    """Applies the faults of processes."""

    def __init__(self, node: Supernode) -> None:
        self._node = node
        self._frozen: set[ReplicaId] = set()
        self._slow: defaultdict[ReplicaId, float] = defaultdict(float)
        """Delay of each instance's transfers by all its active faults [s]."""

    def choose(self, fault: Fault) -> tuple[str, str] | None:
        """Pool and name of the process that a fault hits now; None if there is none."""
        pools = fault.pools if fault.process is None else (fault.process[0],)
        return choose(fault, {pool: self._healthy(pool) for pool in pools})

    def _healthy(self, pool: str) -> list[str]:
        node = self._node
        match pool:
            case "kvcache":
                return [] if node.pool is None else [one.name for one in node.pool.servers() if one.up]
            case "gateway":
                return [f"gateway{number}" for number, one in enumerate(node.gateways) if one.up]
            case "node":
                placement = node.placement
                return [
                    f"n{number}" for number in sorted({one.node for one in placement.npus if placement.work((one,))})
                ]
        return [one.name for one in node.instances(pool) if not one.draining and one.name not in self._frozen]

    def happen(self, fault: Fault, pool: str, name: str, cost: FaultCost) -> None:
        """Apply a fault to the process that it hits, and add its effects to `cost` while the fault lasts."""
        node, now = self._node, self._node.queue.now
        if pool == "kvcache":
            if fault.kind is FaultKind.FREEZE:
                self._freeze_memory(name, fault.duration_s)
            else:
                self.lose_memory(name, now + DURATIONS[FaultKind.MEMORY_SERVER].value)
            return
        if pool == "gateway":
            number = int(name.removeprefix("gateway"))
            cost.hit = node.gateways[number].crash(now + DURATIONS[FaultKind.GATEWAY].value)
            return
        (instance,) = (one for one in node.instances(pool) if one.name == name)
        match fault.kind:
            case FaultKind.KILL:
                cost.still_s = node.config.simulation.start_s or recovery_time(FaultKind.KILL)
                self.lose(instance, cost)
            case FaultKind.FREEZE:
                self._freeze(instance, fault.duration_s, cost)
            case FaultKind.SLOW_LINK:
                self._slow_down((instance.name, fault.factor))
                node.queue.at(fault.until_s, self._slow_down, (instance.name, -fault.factor))
            case _:
                raise LedgerError(f"{fault.kind} hits no instance")

    # ---- killed ----------------------------------------------------------------------------------------------------

    def lose(self, instance: _Instance, cost: FaultCost) -> None:
        """Remove an instance with its KV; a replacement starts after `cost.still_s`."""
        node = self._node
        cost.npus += instance.npus
        cost.tokens += instance.kv_used() * node.config.engine.block_tokens
        before = node.book.hit
        instance.die()
        node.stop_instance(instance)
        cost.hit += node.book.hit - before
        node.sizes.replacing[instance.pool] += 1
        node.queue.at(node.queue.now + cost.still_s, self._start_again, instance.pool)

    def _start_again(self, pool: str) -> None:
        node = self._node
        match node.sizes.replaced(pool):
            case True:
                node.start_instance(pool)
            case None if node.busy:
                node.queue.at(node.queue.now + 1.0, self._start_again, pool)

    def lose_memory(self, name: str, until_s: float) -> None:
        """Remove a memory server until `until_s`. Without effect if no such server is up."""
        pool, now = self._node.pool, self._node.queue.now
        if pool is not None and pool.runs(name):
            pool.lose_server(name, now, keeps_ssd=True)
            if until_s < math.inf:
                self._node.queue.at(until_s, self._new_memory, name)

    def _new_memory(self, name: str) -> None:
        pool = self._node.pool
        if pool is not None:  # a pool that has grown since may have reused the name of the lost server
            pool.add_server(self._node.queue.now, None if pool.runs(name) else name)

    # ---- frozen ----------------------------------------------------------------------------------------------------

    def _freeze(self, instance: _Instance, seconds: float, cost: FaultCost) -> None:
        queue, health = self._node.queue, self._node.config.health
        course = freeze_outcome(seconds, health.silence_s, health.replaced_after_s)
        cost.npus, cost.still_s = instance.npus, course.stands_s
        self._frozen.add(instance.name)
        instance.stall(course.stands_s)
        if course.resumed_after_s is not None:
            queue.at(queue.now + course.resumed_after_s, self._fall_silent, (instance, queue.now, cost))
        queue.at(queue.now + course.stands_s, self._give_up if course.replaced else self._thaw, instance)

    def _fall_silent(self, silent: tuple[_Instance, float, FaultCost]) -> None:
        """Gateways give the instance up, as in a live system; it drops its sequences before it continues."""
        instance, since, cost = silent
        node = self._node
        if not instance.alive:
            return
        instance.silent = True
        for gateway in node.gateways:
            gateway.instance_lost(instance.name, since)
        inside = instance.inside()
        cost.hit += len(inside)
        cost.tokens += instance.kv_used() * node.config.engine.block_tokens
        for sequence_id in inside:
            instance.take(Cancel(sequence_id))

    def _thaw(self, instance: _Instance) -> None:
        self._frozen.discard(instance.name)
        if instance.alive and instance.silent:
            instance.silent = False
            for gateway in self._node.gateways:
                gateway.learn(instance)

    def _give_up(self, instance: _Instance) -> None:
        self._frozen.discard(instance.name)
        if instance.alive:
            restart_s = self._node.config.simulation.start_s or recovery_time(FaultKind.KILL)
            self.lose(instance, FaultCost(still_s=restart_s))

    def _freeze_memory(self, name: str, seconds: float) -> None:
        """Freeze a memory server; after `replaced_after_s` it is killed, and a new server takes over its SSD."""
        pool, queue, replaced_after_s = self._node.pool, self._node.queue, self._node.config.health.replaced_after_s
        assert pool is not None
        replaced = seconds > replaced_after_s
        server = name, pool.freeze_server(name, queue.now, math.inf if replaced else queue.now + seconds)
        if replaced:
            queue.at(queue.now + replaced_after_s, self._replace_memory, server)
        else:
            queue.at(queue.now + seconds, self._thaw_memory, server)

    def _thaw_memory(self, server: tuple[str, int]) -> None:
        pool = self._node.pool
        if pool is not None:
            pool.thaw_server(*server, self._node.queue.now)

    def _replace_memory(self, server: tuple[str, int]) -> None:
        pool, now = self._node.pool, self._node.queue.now
        if pool is not None and pool.is_frozen(*server):
            self.lose_memory(server[0], now + DURATIONS[FaultKind.MEMORY_SERVER].value)

    # ---- slow ------------------------------------------------------------------------------------------------------

    def _slow_down(self, change: tuple[ReplicaId, float]) -> None:
        name, seconds = change
        self._slow[name] += seconds
        self._node.movers.slow(name, self._slow[name])
