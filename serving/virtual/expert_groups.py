"""Expert-parallel groups of a supernode's decode instances, configured by `[simulation] routing` and `[experts]`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hardware.cost.cost_model import CostModel
from hardware.faults import Recovery
from hardware.units import MIB
from serving.config.cluster import DIES_PER_NPU
from serving.errors import ConfigError
from serving.group.core.group_experts import ExpertRules
from serving.ids import ReplicaId
from serving.virtual.decode import DecodeInstance
from serving.virtual.expert_group import ExpertGroup
from serving.virtual.result import ExpertRecord
from serving.virtual.routing import SKEW, SkewedRouting, read_routing
from serving.virtual.times import TableTimes

if TYPE_CHECKING:
    from serving.virtual.supernode import Supernode


class BalancedTimes:
    """Step durations of an instance with an imbalance of its own: `StepDurations` and `GroupTimes` in one.

    Attributes:
        table: durations at any imbalance. imbalance: see `DecodeLoad`.
    """

    def __init__(self, table: TableTimes) -> None:
        self.table = table
        self.imbalance = 1.0

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        """Duration of a prefill step [s], from the shared table."""
        return self.table.prefill(tokens, attended_tokens, largest)

    def decode(self, requests: float, context_tokens: float, mean_requests: float, groups: int = 0) -> float:
        """Duration of a decode iteration [s] at the current `imbalance`."""
        return self.table.decode(requests, context_tokens, mean_requests, groups, self.imbalance)

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """Time that a prompt chunk adds to a decode iteration [s]."""
        return self.table.chunk_on_decode_die(tokens, attended_tokens)


class ExpertGroups:
    """Expert groups of all decode instances of a supernode.

    Raises: ConfigError for settings that virtual time does not support, or a routing trace that does not fit.
    """

    def __init__(self, node: "Supernode", seed: int) -> None:
        config, shape = node.config, node.cost.shape
        experts, routing = config.experts, config.simulation.routing
        if not shape.experts or config.serving.mode == "aggregated":
            raise ConfigError(
                "[simulation] routing is of decode instances: not of dense models, nor with [serving] mode ="
                ' "aggregated"'
            )
        if config.simulation.redundant_experts >= 0:
            raise ConfigError(
                "[simulation] redundant_experts beside routing: set [experts] redundant, copies of each rank"
            )
        if experts.straggler == "drain":
            raise ConfigError(
                '[experts] straggler = "drain" cannot be in virtual time, where another process would be on the same'
                ' slow die: set it to "balance" or "off"'
            )
        self._node, self._seed = node, seed
        self._rules = ExpertRules(
            experts.policy, experts.window_s, experts.slices, experts.min_gain, experts.move_mib_per_s * MIB,
            experts.straggler, experts.on_loss == "mask",
        )  # fmt: skip
        recorded = Path(routing) if routing != SKEW else None
        self._recorded = recorded and read_routing(recorded, shape.experts, shape.moe_layers, self._rules.slice_s)
        self._times: dict[ReplicaId, BalancedTimes] = {}
        self._groups: dict[ReplicaId, ExpertGroup] = {}
        self._divided: dict[ReplicaId, CostModel] = {}
        """Cost models of instances whose number of expert dies has changed."""
        self.records: list[ExpertRecord] = []
        """All changes of maps, in order of their end."""

    def times(self, name: ReplicaId) -> BalancedTimes:
        """Step durations of an instance, created on the first call."""
        return self._times.setdefault(name, BalancedTimes(self._node.times))

    def start(self, instance: DecodeInstance) -> None:
        """Form the group of a new instance."""
        name = instance.name
        routing = self._recorded or SkewedRouting(self._node.cost.shape.experts, self._seed, name)
        self._groups[name] = ExpertGroup(
            self._node, instance, self._ranks(instance), routing, self._rules, self.times(name),
            self._node.slowdowns[name], self.records,
        )  # fmt: skip
        self.slow(name)

    def of(self, name: ReplicaId) -> ExpertGroup:
        """The group of an instance that is up."""
        return self._groups[name]

    def stop(self, name: ReplicaId) -> None:
        """Remove the group of a stopped instance."""
        self._groups.pop(name, None)
        self._times.pop(name, None)
        self._divided.pop(name, None)

    def cost_of(self, name: ReplicaId) -> CostModel:
        """The cost model of an instance, with its current number of expert dies."""
        return self._divided.get(name, self._node.cost)

    def divide(self, name: ReplicaId, cost: CostModel, dies: int) -> None:
        """Set an instance's cost model, before its NPUs change to as many dies, with that model's expert dies."""
        config = self._node.config
        self._divided[name] = cost
        self._times[name].table = TableTimes(cost, config.simulation, config.prefill.dies_per_instance, dies)

    def note(self, name: ReplicaId, kind: str, reason: str) -> None:
        """Record a command for an instance, which may not be up."""
        if name in self._groups:
            self._groups[name].note(kind, reason)
            return
        now = self._node.queue.now
        self.records.append(ExpertRecord(now, name, kind, 0, 0, math.nan, math.nan, reason))
        self._node.book.decided(now, "experts", name, kind, reason)

    def resize(self, instance: DecodeInstance) -> None:
        """Resize the group to the current NPUs of its instance."""
        self._groups[instance.name].resize(self._ranks(instance))
        self.slow(instance.name)

    def lose(self, instance: DecodeInstance, dies: Sequence[int], until_s: float) -> Recovery:
        """Remove the ranks of lost dies from an instance's group; see `ExpertGroup.lose`. Attention dies are none."""
        return self._groups[instance.name].lose(dies, until_s)

    def slow(self, name: ReplicaId) -> None:
        """Update the slowdown factors of an instance's dies. Without effect if it has no group."""
        group, node = self._groups.get(name), self._node
        if group is not None:
            places = node.places[name]
            dies = node.placement.dies_of(places)
            experts = self.cost_of(name).decode.parallelism.expert_dies or len(dies)
            factors = {dies.index(die): factor for die, factor in node.slow_dies.items() if die in dies}
            apart = [factor for die, factor in factors.items() if die >= experts]
            node.slowdowns[name].set("attention dies", max(apart, default=1.0))
            group.slow({die: factor for die, factor in factors.items() if die < experts})

    def _ranks(self, instance: DecodeInstance) -> int:
        decode = self.cost_of(instance.name).decode
        return int(decode.group(decode.parallelism.expert_dies or instance.npus * DIES_PER_NPU).routed_dies)
