"""Fault injection for a supernode in virtual time: what each fault loses, how long it stalls instances, its cost.

die, NPU      the instance stalls until its group is rebuilt without the die; sequences on the die start again
node          its instances and its memory server are lost; instances start again on idle or repaired NPUs
RDMA link     handoffs over it are slow or stall      UB sub-plane   links and expert traffic lose a seventh
straggler     every step of its group takes as long as the slowest die
HBM           sequences on the die start again        memory server  blocks are lost, those on SSD return with it
gateway       its requests fail                       glitch, jitter the group repeats a step, or starts it late
kill, freeze, slow link of one process: see `process_faults`
"""

import math
from collections import Counter
from collections.abc import Callable

from hardware.fabric.routes import Direction, link_id
from hardware.faults import DURATIONS, PROCESS_KINDS, DieRole, Fault, FaultKind, Recovery, recovery_time
from hardware.spec.plane import Plane
from hardware.topology import DieId, NpuId
from hardware.variation import PRODUCTION_MOE_SHARE
from serving.virtual.decode import DecodeInstance
from serving.virtual.prefill import PrefillInstance
from serving.virtual.process_faults import FaultCost, ProcessFaults
from serving.virtual.result import FaultRecord
from serving.virtual.supernode import Supernode

SUBPLANES = 7
_NEVER = math.inf


class FaultInjector:
    """Applies a schedule of faults to a supernode and records their cost."""

    def __init__(self, node: Supernode, faults: tuple[Fault, ...]) -> None:
        self._node = node
        self._processes = ProcessFaults(node)
        self._records: list[tuple[Fault, str, FaultCost]] = []
        """Each fault with the name of its target and its cost."""
        self._planes: Counter[int] = Counter()
        """Number of active faults of each UB sub-plane."""
        self._thinned: dict[DieId, tuple[float, list[float]]] = {}
        """RDMA links with active faults: the full rate, and the part of it that each fault leaves, 0..1."""
        self._slow: dict[DieId, list[float]] = {}
        """Slowdown factors of the active straggler faults of each die."""
        for fault in faults:
            node.queue.at(fault.at_s, self._happen, fault)

    def records(self) -> list[FaultRecord]:
        """Faults so far, in order of time. `until_s` is nan where the effect has not ended."""
        now = self._node.queue.now
        return [
            FaultRecord(
                fault.at_s,
                fault.kind.value,
                target,
                fault.until_s if fault.until_s <= now else math.nan,
                cost.hit,
                cost.tokens,
                cost.npus * min(cost.still_s, now - fault.at_s),
            )
            for fault, target, cost in self._records
        ]

    def _happen(self, fault: Fault) -> None:
        node, cost = self._node, FaultCost()
        if not node.busy:
            return
        chooses = fault.kind in PROCESS_KINDS or not fault.target
        chosen = self._processes.choose(fault) if chooses else None
        target = fault.target if not chooses else "nothing to hit" if chosen is None else chosen[1]
        self._records.append((fault, target, cost))
        node.book.decided(node.queue.now, "fault", target, fault.kind.value, f"for {fault.duration_s:g} s")
        if chosen is not None and chosen[0] == "node":
            self._lose_node(fault, int(target.removeprefix("n")), cost)
        elif chosen is not None:
            self._processes.happen(fault, *chosen, cost)
        elif not chooses:
            self._hit_unit(fault, cost)

    def _hit_unit(self, fault: Fault, cost: FaultCost) -> None:
        """Apply a fault to the hardware unit that it names."""
        node, numbers = self._node, fault.target_numbers
        match fault.kind:
            case FaultKind.DIE | FaultKind.NPU:
                self._lose_npu(fault, NpuId(*numbers[:2]), cost)
            case FaultKind.NODE:
                self._lose_node(fault, numbers[0], cost)
            case FaultKind.RDMA_LINK:
                self._thin_link(fault, DieId(NpuId(*numbers[:2]), numbers[2]))
            case FaultKind.UB_SUBPLANE:
                self._lose_subplane(fault)
            case FaultKind.STRAGGLER:
                self._slow_down(fault, DieId(NpuId(*numbers[:2]), numbers[2]))
            case FaultKind.HBM:
                for instance in self._on(lambda npu: npu == NpuId(*numbers[:2])):
                    self._lose_die(instance, NpuId(*numbers[:2]), numbers[2:], fault.factor, cost)
            case FaultKind.MEMORY_SERVER:
                self._processes.lose_memory(f"server-{numbers[0]}", fault.until_s)
            case FaultKind.GATEWAY:
                for gateway in node.gateways[numbers[0] : numbers[0] + 1]:
                    cost.hit = gateway.crash(fault.until_s)
            case FaultKind.NETWORK_GLITCH:
                for decode in node.decoding:
                    decode.repeat(fault.factor)
            case FaultKind.LAUNCH_JITTER:
                for instance in self._on(lambda npu: npu.node == numbers[0]):
                    instance.stall(fault.duration_s)
            case FaultKind.VPC_CARD:  # serving does not use the plane; only loading models from storage would
                pass

    # ---- effects ---------------------------------------------------------------------------------------------------

    def _on(self, hit: Callable[[NpuId], bool]) -> list[PrefillInstance | DecodeInstance]:
        node = self._node
        return [one for one in node.everyone if any(hit(npu) for npu in node.places[one.name])]

    def _lose_npu(self, fault: Fault, npu: NpuId, cost: FaultCost) -> None:
        dies = fault.target_numbers[2:] or tuple(range(2))
        for instance in self._on(lambda one: one == npu):
            cost.npus += instance.npus
            self._lose_die(instance, npu, dies, 1.0, cost)
            places = self._node.placement.dies_of(self._node.places[instance.name])
            lost = [places.index(DieId(npu, die)) for die in dies]
            recovery = Recovery.REDUNDANT_EXPERTS
            if self._node.experts is not None and isinstance(instance, DecodeInstance):
                recovery = self._node.experts.lose(instance, lost, fault.until_s)
            cost.still_s = recovery_time(fault.kind, recovery, self._role(instance, lost[-1]))
            instance.stall(cost.still_s)

    def _role(self, instance: PrefillInstance | DecodeInstance, die: int) -> DieRole:
        experts = self._node.division_of(instance.name).expert_dies
        if instance.pool != "decode" or not experts:
            return DieRole.COLOCATED
        return DieRole.EXPERT if die < experts else DieRole.ATTENTION

    def _lose_die(
        self,
        instance: PrefillInstance | DecodeInstance,
        npu: NpuId,
        dies: tuple[int, ...],
        share: float,
        cost: FaultCost,
    ) -> None:
        places = self._node.placement.dies_of(self._node.places[instance.name])
        if instance.pool == "prefill":  # all dies share every sequence, so that a sequence is lost only once
            dies = dies[:1]
        of_prefill = instance.pool == "prefill"
        division = self._node.division_of(instance.name)
        tp, first = (1, 0) if of_prefill else (division.attention_tp, division.expert_dies)
        for group in sorted({(places.index(DieId(npu, die)) - first) // tp for die in dies}):
            if group < 0:  # a die with experts only: no KV is lost, and all of the instance waits
                continue
            hit, tokens = instance.lose_die(group, share)
            cost.hit += hit
            cost.tokens += tokens

    def _lose_node(self, fault: Fault, number: int, cost: FaultCost) -> None:
        node = self._node
        broken = [npu for npu in node.placement.npus if npu.node == number]
        for npu in broken:
            node.placement.fail(npu)
        cost.still_s = recovery_time(FaultKind.NODE)
        for instance in self._on(lambda one: one.node == number):
            self._processes.lose(instance, cost)
        until_s = fault.until_s if fault.kind is FaultKind.NODE else fault.at_s + DURATIONS[FaultKind.NODE].value
        self._processes.lose_memory(f"server-{number}", until_s)
        if until_s < _NEVER:
            node.queue.at(until_s, self._repaired, broken)

    def _repaired(self, npus: list[NpuId]) -> None:
        for npu in npus:
            self._node.placement.repair(npu)

    def _thin_link(self, fault: Fault, die: DieId) -> None:
        whole = self._node.network.fabric.capacity(link_id(Plane.RDMA, die, Direction.IN))
        _, parts = self._thinned.setdefault(die, (whole, []))
        parts.append(fault.factor)
        self._set_link(die)
        if fault.until_s < _NEVER:
            self._node.queue.at(fault.until_s, self._restore_link, (die, fault.factor))

    def _restore_link(self, restore: tuple[DieId, float]) -> None:
        die, part = restore
        self._thinned[die][1].remove(part)
        self._set_link(die)

    def _set_link(self, die: DieId) -> None:
        network, (rate, parts) = self._node.network, self._thinned[die]
        for way in Direction:
            network.fabric.set_capacity(self._node.queue.now, link_id(Plane.RDMA, die, way), rate * math.prod(parts))
        network.changed()

    def _lose_subplane(self, fault: Fault) -> None:
        plane = fault.target_numbers[1]
        self._count_subplane((plane, 1))
        if fault.until_s < _NEVER:
            self._node.queue.at(fault.until_s, self._count_subplane, (plane, -1))

    def _count_subplane(self, change: tuple[int, int]) -> None:
        plane, faults = change
        self._planes[plane] += faults
        node, lost = self._node, sum(number > 0 for number in self._planes.values())
        node.stretch(_stretch(lost))
        node.network.fabric.scale_plane(node.queue.now, Plane.UB, max(0.0, 1.0 - lost / SUBPLANES))
        node.network.changed()

    def _slow_down(self, fault: Fault, die: DieId) -> None:
        factors = self._slow.setdefault(die, [])
        factors.append(fault.factor)
        self._node.slow_die(die, math.prod(factors, start=1.0))
        if fault.until_s < _NEVER:
            self._node.queue.at(fault.until_s, self._speed_up, (die, fault.factor))

    def _speed_up(self, slowed: tuple[DieId, float]) -> None:
        die, factor = slowed
        self._slow[die].remove(factor)
        self._node.slow_die(die, math.prod(self._slow[die], start=1.0))


def _stretch(planes_lost: int) -> float:
    left = max(1, SUBPLANES - planes_lost)
    return 1.0 + PRODUCTION_MOE_SHARE * (SUBPLANES / left - 1.0)
