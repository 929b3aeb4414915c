"""Decode instances that grow and shrink while they serve, in virtual time.

    grow      NPUs are taken | process, weights, graphs on them | pause: all dies are one group | serves
    shrink    the last dies take nothing new, their streams go on in the others | weights move | pause | NPUs are free

As many instances as `[decode] replicas` share the parts of `decode_step_npus` evenly. A change that has begun ends;
then the next one may begin. What the former dies serve goes on but for the pause.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardware.topology import NpuId
from serving.config.cluster import DIES_PER_NPU
from serving.virtual.elastic_decode import ElasticDecode

if TYPE_CHECKING:
    from serving.virtual.supernode import Supernode

_LOOK_S = 1.0
"""An instance that shrinks is asked so often whether its last dies are empty."""


@dataclass(frozen=True, slots=True)
class _Growth:
    instance: ElasticDecode
    npus: tuple[NpuId, ...]


@dataclass(frozen=True, slots=True)
class _Shrinkage:
    instance: ElasticDecode
    npus: int
    ready_s: float


class PartSizes:
    """The sizes of one supernode's decode instances.

    Args:
        step: NPUs of one part.
    Attributes:
        target: parts of all instances together.
        fewest: parts of one instance.
    """

    def __init__(self, node: "Supernode", step: int) -> None:
        config = node.config
        self.step = step
        self.target = config.decode.replicas * config.decode.npus_per_instance // step
        self._node = node
        self.fewest = config.autoscaler.min_decode_npus // step
        self._most = config.autoscaler.max_decode_npus // step
        self._changing: dict[ElasticDecode, int] = {}
        """Instances that change, and the NPUs that they will have."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most parts of all instances together."""
        groups = self._node.config.decode.replicas
        return groups * self.fewest, groups * self._most

    @property
    def growing_npus(self) -> int:
        """NPUs that were taken for instances and do not serve yet."""
        return sum(max(0, npus - one.npus) for one, npus in self._changing.items() if one.alive)

    @property
    def leaving_npus(self) -> int:
        """NPUs of dies that take nothing new."""
        return sum(max(0, one.npus - npus) for one, npus in self._changing.items() if one.alive)

    def start_s(self) -> float:
        """From a decision to one more part that serves [s]."""
        node = self._node
        warm = node.sizes.warm.npus(node.queue.now) >= self.step
        return node.sizes.phases.seconds(warm=warm) + node.config.simulation.resize_pause_s

    def set_target(self, parts: int) -> None:
        """Have so many parts from now on. Effects: begins what can begin."""
        self.target = parts
        self.fill()

    def fill(self) -> None:
        """Bring every instance nearer to its share, those that shrink first."""
        instances = [one for one in self._node.decodes if isinstance(one, ElasticDecode)]
        if not instances:
            return
        each, more = divmod(self.target, len(instances))
        wishes = {}
        for place, instance in enumerate(instances):
            if instance not in self._changing:
                wishes[instance] = min(self._most, max(self.fewest, each + (place < more))) * self.step
        for instance, npus in sorted(wishes.items(), key=lambda pair: pair[1] - pair[0].npus):
            if npus < instance.npus:
                self._shrink(instance, npus)
            elif npus > instance.npus:
                self._grow(instance, npus)

    def _grow(self, instance: ElasticDecode, npus: int) -> None:
        node = self._node
        free = max(0, node.sizes.free_npus) // self.step * self.step
        taken = node.placement.take(min(npus - instance.npus, free)) if free else None
        if not taken:
            return
        self._changing[instance] = instance.npus + len(taken)
        now = node.queue.now
        seconds = node.sizes.phases.seconds(warm=node.sizes.warm.take(len(taken), now))
        node.queue.at(now + seconds, self._grown, _Growth(instance, taken))

    def _grown(self, growth: _Growth) -> None:
        instance, node = growth.instance, self._node
        del self._changing[instance]
        if instance.alive and node.placement.work(growth.npus):
            node.move_instance(instance, (*node.places[instance.name], *growth.npus))
        else:
            node.placement.give_back(growth.npus)
        self.fill()

    def _shrink(self, instance: ElasticDecode, npus: int) -> None:
        node = self._node
        self._changing[instance] = npus
        instance.close(node.groups_of(npus))
        moves_s = node.cost.regroup_s(instance.npus * DIES_PER_NPU, npus * DIES_PER_NPU)
        ready_s = node.queue.now + moves_s + node.config.simulation.graphs_s
        node.queue.at(node.queue.now, self._shrunk, _Shrinkage(instance, npus, ready_s))

    def _shrunk(self, shrinkage: _Shrinkage) -> None:
        instance, node = shrinkage.instance, self._node
        if instance.alive and (instance.closing or node.queue.now < shrinkage.ready_s):
            node.queue.at(node.queue.now + _LOOK_S, self._shrunk, shrinkage)
            return
        del self._changing[instance]
        if instance.alive:
            places = node.places[instance.name]
            node.move_instance(instance, places[: shrinkage.npus])
            node.placement.give_back(places[shrinkage.npus :])
        node.sizes.fill()
        self.fill()
