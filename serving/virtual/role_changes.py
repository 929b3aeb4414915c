"""Operators' commands on decode instances with attention ranks and expert ranks: `experts resize` and `switch`.

    command   the core of live groups checks it; NPUs that it needs in addition are taken
    shrink    streams of the last attention ranks continue in others, experts of the last expert ranks move to others;
              then these ranks leave
    grow      process, weights and graphs of new ranks, on the NPUs of ranks that have left first; then they join

Attention ranks join and leave without a pause; with expert ranks the instance waits for the new map. One command at a
time changes an instance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from hardware.cost.cost_model import CostModel
from hardware.errors import HardwareError
from hardware.topology import NpuId
from serving.config.cluster import DIES_PER_NPU
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.faults.scenario import CommandConfig
from serving.group.core.group_growth import change_shown, resize_plan, switched
from serving.group.core.group_sides import (
    BUSY,
    GroupSizes,
    RankSnapshot,
    first_lease,
    resize_refusal,
    switch_refusal,
    wanted_ranks,
)
from serving.ids import ReplicaId
from serving.values.group import RankLease, RankPhase, RankReport, RankRole, ResizeGroup
from serving.virtual.decode import DecodeInstance
from serving.virtual.supernode import Supernode

_LOOK_S = 1.0
"""Period for checking whether leaving attention dies are empty."""
_SIDES = (RankRole.ATTENTION, RankRole.EXPERTS)

Ranks = tuple[int, int]
"""Attention ranks and expert ranks."""


@dataclass(slots=True)
class _Change:
    """A command in progress.

    Attributes:
        before, between, after: ranks; `between` has the smaller number of each.
        spare: NPUs that belong to no rank: taken for new ones, or left by former ones.
        ready_s: time at which experts of leaving ranks have moved.
    """

    instance: DecodeInstance
    shown: str
    begun_s: float
    before: Ranks
    between: Ranks
    after: Ranks
    spare: tuple[NpuId, ...] = ()
    ready_s: float = 0.0


class RoleChanges:
    """Commands of a scenario.

    Args:
        given: configuration with ranks, of which `node` has the dies.
    Raises: ConfigError for commands without such ranks, or without `[simulation] routing`.
    """

    def __init__(self, node: Supernode, given: ServeConfig, commands: Sequence[CommandConfig]) -> None:
        pool, most = given.decode, given.experts.most_ranks_of(*given.decode.sides)
        if commands and (node.experts is None or not pool.has_roles):
            raise ConfigError(
                "[[command]] changes the number or role of ranks: set [decode] attention_ranks and expert_ranks, and "
                "[simulation] routing"
            )
        self._node = node
        self._npus = tuple(npus for npus, _ in pool.rank_resources)
        """NPUs of one rank of each kind."""
        self._sizes = [
            GroupSizes(count, most, given.experts.redundant, role=role)
            for role, count in zip(_SIDES, pool.sides, strict=False)
        ]
        self._leases: dict[ReplicaId, RankLease] = {}
        self._changing: set[ReplicaId] = set()
        self._costs: dict[int, CostModel] = {}
        for command in commands:
            node.queue.at(command.at_s, self._obey, command)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _obey(self, command: CommandConfig) -> None:
        node, name = self._node, ReplicaId(f"decode-{command.instance}")
        if not node.busy:
            return
        instance = next((one for one in node.decodes if one.name == name), None)
        refusal = "no such instance is up" if instance is None else BUSY if name in self._changing else ""
        if instance is None or refusal:
            self._note(name, "refused", refusal)
            return
        before = self._leases.setdefault(name, first_lease(name, 0, 1, self._sizes))
        lease, refusal = self._planned(before, command)
        sizes = [(one.size, one.expert_size) for one in (before, lease)]
        shown = change_shown(before, lease, _SIDES)
        a, e = zip(*sizes, strict=True)
        change = _Change(instance, shown, node.queue.now, sizes[0], (min(a), min(e)), sizes[1])
        refusal = refusal or self._reserve(change)
        self._note(name, "refused" if refusal else "ordered", refusal or shown)
        if not refusal and change.after != change.before:
            self._changing.add(name)
            self._begin(change)

    def _planned(self, before: RankLease, command: CommandConfig) -> tuple[RankLease, str]:
        """The lease that a command requests, and why it is refused; empty if it is not."""
        experts = self._node.cost.shape.experts
        if not command.switch_to:
            order = ResizeGroup(command.attention_ranks or None, command.expert_ranks or None)
            return resize_plan(before, self._sizes, order, experts)
        role, sides = RankRole(command.switch_to), [one.side(before) for one in self._sizes]
        serving = RankSnapshot(report=RankReport(before, RankPhase.SERVING, 0, ""))
        last = next(one.full for one in sides if one.role is not role) - 1
        refusal = switch_refusal(dict.fromkeys(wanted_ranks(sides), serving), sides, last, role)
        if refusal:
            return before, refusal
        lease = switched(before, role)
        sizes = next(one for one in self._sizes if one.role is role)
        return lease, resize_refusal(lease.of(role)[0], sizes, experts)

    def _reserve(self, change: _Change) -> str:
        """Take the NPUs that a change needs in addition. Returns: why it is impossible; empty if it is not."""
        node = self._node
        try:
            weights = [self._expert_weights(ranks) for ranks in (change.before, change.between, change.after)]
        except HardwareError as error:
            return str(error)
        moves_s = node.cost.ub_read_s(max(0, weights[1] - weights[0]), pooled=False)
        change.ready_s = node.queue.now + moves_s + node.config.simulation.graphs_s
        more = sum(self._npus_of(change.after)) - sum(self._npus_of(change.before))
        free = node.sizes.free_npus
        if more > free:
            return f"{change.shown} needs {more} more NPUs, and {free} are free"
        if more > 0:
            change.spare = node.placement.take(more) or ()
            node.changing_npus += more
        return ""

    def _expert_weights(self, ranks: Ranks) -> int:
        """Bytes of weights on each expert die.

        Raises: HardwareError for ranks that cannot be: too little memory, or attention dies that domains do not divide.
        """
        plan = self._cost(ranks).hbm_plan("decode", sum(self._npus_of(ranks)) * DIES_PER_NPU)
        assert plan.expert_die is not None
        return plan.expert_die.weights

    def _cost(self, ranks: Ranks) -> CostModel:
        """Cost model with the expert dies of so many ranks."""
        whole, dies = self._node.cost, self._npus_of(ranks)[1] * DIES_PER_NPU
        if dies not in self._costs:
            division = replace(whole.decode.parallelism, expert_dies=dies)
            self._costs[dies] = CostModel(
                whole.device, whole.shape, whole.engine, decode=division, prefill=whole.prefill.parallelism
            )
        return self._costs[dies]

    def _npus_of(self, ranks: Ranks) -> Ranks:
        """NPUs for attention and for experts."""
        return ranks[0] * self._npus[0], ranks[1] * self._npus[1]

    # ---- carrying out ------------------------------------------------------------------------------------------------

    def _begin(self, change: _Change) -> None:
        if change.between == change.before:
            self._start(change)
            return
        attention = self._npus_of(change.between)[0] * DIES_PER_NPU
        change.instance.groups.close(attention)
        self._shrink(change)

    def _shrink(self, change: _Change) -> None:
        """Once leaving ranks have neither streams nor the only copy of an expert, use their NPUs for new ranks."""
        instance, node = change.instance, self._node
        if not instance.alive:
            self._end(change, "given up", "the instance was lost")
            return
        if instance.groups.closing or node.queue.now < change.ready_s:
            node.queue.at(max(change.ready_s, node.queue.now + _LOOK_S), self._shrink, change)
            return
        places, (attention, experts) = node.places[instance.name], self._npus_of(change.between)
        first = self._npus_of(change.before)[1]
        stay = places[:experts] + places[first : first + attention]
        left = tuple(npu for npu in places if npu not in stay)
        self._move(change, change.before, change.between, stay)
        needed = sum(self._npus_of(change.after)) - len(stay)
        pool = left + change.spare
        node.changing_npus += needed - len(change.spare)
        change.spare = pool[:needed]
        node.placement.give_back(pool[needed:])
        node.sizes.fill()
        self._start(change)

    def _start(self, change: _Change) -> None:
        node = self._node
        if change.after == change.between:
            self._end(change, "complete", "")
            return
        warm = node.sizes.warm.take(len(change.spare), node.queue.now)
        node.queue.at(node.queue.now + node.sizes.phases.seconds(warm=warm), self._grow, change)

    def _grow(self, change: _Change) -> None:
        instance, node = change.instance, self._node
        if not instance.alive or not node.placement.work(change.spare):
            self._end(change, "given up", "NPUs of new ranks are lost" if instance.alive else "the instance was lost")
            return
        places, new = node.places[instance.name], iter(change.spare)
        experts = self._npus_of(change.between)[1]
        of_experts = tuple(islice(new, self._npus_of(change.after)[1] - experts))
        node.changing_npus -= len(change.spare)
        change.spare = ()
        self._move(change, change.between, change.after, (*places[:experts], *of_experts, *places[experts:], *new))
        self._end(change, "complete", "")

    def _move(self, change: _Change, before: Ranks, after: Ranks, npus: tuple[NpuId, ...]) -> None:
        """Change the instance's ranks; it pauses if the map changes."""
        node, name = self._node, change.instance.name
        assert node.experts is not None
        pause_s = 0.0
        if before[1] != after[1]:
            node.experts.divide(name, self._cost(after), len(npus) * DIES_PER_NPU)
            pause_s = node.config.simulation.resize_pause_s
        node.move_instance(change.instance, npus, pause_s)
        lease = self._leases[name]
        for role, size in zip(_SIDES, after, strict=True):
            lease = lease.sized(role, size, 0)
        self._leases[name] = lease

    def _end(self, change: _Change, kind: str, reason: str) -> None:
        node, name = self._node, change.instance.name
        self._changing.discard(name)
        node.changing_npus -= len(change.spare)
        node.placement.give_back(change.spare)
        node.sizes.fill()
        lasted = f"{change.shown}; {node.queue.now - change.begun_s:.1f} s"
        self._note(name, kind, f"{lasted}{f': {reason}' if reason else ''}")

    def _note(self, name: ReplicaId, kind: str, reason: str) -> None:
        assert self._node.experts is not None
        self._node.experts.note(name, kind, reason)
