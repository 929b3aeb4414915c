"""Decode instances that grow and shrink while they serve, in virtual time.

    grow      NPUs are allocated | process, weights, graphs on them | pause: all dies are one group | serves
    shrink    the last dies close, their streams continue in the others | weights move | pause | NPUs are free

`DecodeParts` decides which change starts when. The other dies continue to serve, except during the pause.
Where experts have dies of their own, those are the first ones and stay: only attention dies come and go.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardware.topology import NpuId
from serving.config.cluster import DIES_PER_NPU
from serving.ids import NodeId, ReplicaId
from serving.scaling.core.decode_parts import DecodeParts, SizedInstance
from serving.virtual.decode import DecodeInstance

if TYPE_CHECKING:
    from serving.virtual.supernode import Supernode

SUPERNODE = NodeId("supernode")
"""The place of all instances in capacity checks: their NPUs may be anywhere on the UB fabric."""
_LOOK_S = 1.0
"""Period for checking whether the last dies of a shrinking instance are empty."""


@dataclass(frozen=True, slots=True)
class _Growth:
    instance: DecodeInstance
    npus: tuple[NpuId, ...]


@dataclass(frozen=True, slots=True)
class _Shrinkage:
    instance: DecodeInstance
    npus: int
    ready_s: float


class DecodeSizes:
    """The sizes of one supernode's decode instances.

    Args:
        step: NPUs of one part.
    Attributes:
        rules: with the target.
    """

    def __init__(self, node: "Supernode", step: int) -> None:
        config = node.config
        scaler, begun = config.autoscaler, config.decode.replicas * config.decode.npus_per_instance
        self.step = step
        self.rules = DecodeParts(scaler.min_decode_npus // step, scaler.max_decode_npus // step, begun // step)
        self._node = node
        apart = node.cost.decode.parallelism.expert_dies > 0
        self._pause_s = 0.0 if apart else config.simulation.resize_pause_s
        """Attention dies join and leave dies with experts only without stopping them."""
        self._changing: dict[ReplicaId, int] = {}
        """NPUs of changing instances after their change, including instances lost during the change."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most parts of all instances together."""
        return self.rules.bounds(self._node.config.decode.replicas)

    def instances(self) -> list[SizedInstance]:
        """Running instances with their sizes in parts."""
        step, changing = self.step, self._changing
        return [
            SizedInstance(one.name, SUPERNODE, one.npus // step, changing.get(one.name, one.npus) // step)
            for one in self._node.decodes
        ]

    @property
    def growing_npus(self) -> int:
        """NPUs that were allocated to growing instances and do not serve yet."""
        return self.step * sum(one.growing for one in self.instances())

    @property
    def leaving_npus(self) -> int:
        """NPUs of closed dies, which accept no new sequences."""
        return self.step * sum(one.leaving for one in self.instances())

    def start_s(self) -> float:
        """Time from a decision until one more part serves [s]."""
        node = self._node
        warm = node.sizes.warm.npus(node.queue.now) >= self.step
        return node.sizes.phases.seconds(warm=warm) + self._pause_s

    def set_target(self, parts: int) -> None:
        """Set the target in parts, and start the changes that are due."""
        self.rules.target = parts
        self.fill()

    def fill(self) -> None:
        """Start the changes that are due."""
        node = self._node
        by_name = {one.name: one for one in node.decodes}
        for due in self.rules.due(self.instances(), {SUPERNODE: max(0, node.sizes.free_npus) // self.step}):
            start = self._shrink if due.parts < due.before else self._grow
            start(by_name[ReplicaId(due.name)], due.parts * self.step)

    def _grow(self, instance: DecodeInstance, npus: int) -> None:
        node, now = self._node, self._node.queue.now
        taken = node.placement.take(npus - instance.npus)
        assert taken is not None, "more NPUs than were free"
        self._changing[instance.name] = npus
        seconds = node.sizes.phases.seconds(warm=node.sizes.warm.take(len(taken), now))
        node.queue.at(now + seconds, self._grown, _Growth(instance, taken))

    def _grown(self, growth: _Growth) -> None:
        instance, node = growth.instance, self._node
        del self._changing[instance.name]
        if instance.alive and node.placement.work(growth.npus):
            node.move_instance(instance, (*node.places[instance.name], *growth.npus), self._pause_s)
        else:
            node.placement.give_back(growth.npus)
        self.fill()

    def _shrink(self, instance: DecodeInstance, npus: int) -> None:
        node, now = self._node, self._node.queue.now
        self._changing[instance.name] = npus
        instance.groups.close(node.groups_of(npus))
        moves_s = node.cost.regroup_s(instance.npus * DIES_PER_NPU, npus * DIES_PER_NPU)
        node.queue.at(now, self._shrunk, _Shrinkage(instance, npus, now + moves_s + node.config.simulation.graphs_s))

    def _shrunk(self, shrinkage: _Shrinkage) -> None:
        instance, node = shrinkage.instance, self._node
        if instance.alive and (instance.groups.closing or node.queue.now < shrinkage.ready_s):
            node.queue.at(node.queue.now + _LOOK_S, self._shrunk, shrinkage)
            return
        del self._changing[instance.name]
        if instance.alive:
            places = node.places[instance.name]
            node.move_instance(instance, places[: shrinkage.npus], self._pause_s)
            node.placement.give_back(places[shrinkage.npus :])
        node.sizes.fill()
        self.fill()
