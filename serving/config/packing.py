"""Whether the nodes can hold all replicas, with each replica on one node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from serving.config.cluster import DIES_PER_NPU, NodeConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Need:
    """Equal replicas of one deployment. A memory server needs no NPUs."""

    name: str
    replicas: int
    npus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class _Room:
    """Free capacity of a node."""

    npus: int
    memory_mib: int

    def holds(self, need: Need) -> int:
        """Number of replicas that fit, at most the requested number."""
        by_npus = self.npus // need.npus if need.npus else need.replicas
        return min(by_npus, self.memory_mib // need.memory_mib, need.replicas)

    def less(self, need: Need, replicas: int) -> "_Room":
        """The remaining capacity after that many replicas."""
        return _Room(self.npus - replicas * need.npus, self.memory_mib - replicas * need.memory_mib)


def can_pack(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> bool:
    """Whether some placement holds every replica; a sufficient total is not enough.

    Exact. A greedy placement settles most cases. If it fails, all relevant placements are tried: node by node, for
    every number of replicas of all deployments but the last, the most replicas of the last that also fit.
    """
    needs = [need for need in needs if need.replicas]
    if not needs or not _greedy(needs, nodes)[1]:
        return True
    *firsts, last = needs
    wanted = tuple(need.replicas for need in firsts)
    best: dict[tuple[int, ...], int] = {(0,) * len(firsts): 0}
    for node in nodes:
        loads = list(_loads(firsts, last, _Room(node.npus, node.ub_memory_mib)))
        reached: dict[tuple[int, ...], int] = {}
        for (placed, others), (more, beside) in product(best.items(), loads):
            state = tuple(min(have + extra, want) for have, extra, want in zip(placed, more, wanted, strict=True))
            reached[state] = max(reached.get(state, 0), others + beside)
        best = reached
    return best.get(wanted, -1) >= last.replicas


def place(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> list[NodeConfig]:
    """Place replicas, largest first, each on the first node with enough capacity; those that do not fit are omitted.

    Returns: the nodes with their remaining capacity.
    """
    rooms, _ = _greedy(needs, nodes)
    return [
        replace(node, npus=room.npus, ub_memory_mib=room.memory_mib) for node, room in zip(nodes, rooms, strict=True)
    ]


def _greedy(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> tuple[list[_Room], int]:
    """Largest first, each on the first node that fits. Returns: the remaining capacity, and the unplaced replicas."""
    rooms = [_Room(node.npus, node.ub_memory_mib) for node in nodes]
    placeless = 0
    for need in sorted(needs, key=lambda need: (need.npus, need.memory_mib), reverse=True):
        left = need.replicas
        for index, room in enumerate(rooms):
            here = min(room.holds(need), left)
            rooms[index] = room.less(need, here)
            left -= here
        placeless += left
    return rooms, placeless


def _loads(firsts: Sequence[Need], last: Need, room: _Room) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every way to load one node: numbers of replicas of `firsts`, and the most of `last` that still fit."""
    if not firsts:
        yield (), room.holds(last)
        return
    for count in range(room.holds(firsts[0]) + 1):
        for rest, most in _loads(firsts[1:], last, room.less(firsts[0], count)):
            yield (count, *rest), most


# Rules for how simulated instances divide their work, and for drafts; contradictions are refused.


def check_division(config: ServeConfig) -> None:
    """Refuse groups of dies that do not divide an instance, or its parts.

    Raises: ConfigError.
    """
    simulation = config.simulation
    pools = {f"[{name}]": pool.dies_per_instance for name, pool in config.pools.items()}
    prompts, answers = [
        {name: dies for name, dies in pools.items() if name != one} for one in ("[decode]", "[prefill]")
    ]
    parts = {"[autoscaler] decode_step_npus": config.autoscaler.decode_step_npus * DIES_PER_NPU}
    for name, tp, sizes in (
        ("decode_attention_tp", simulation.decode_attention_tp, answers | parts),
        ("prefill_attention_tp", simulation.prefill_attention_tp, prompts),
        ("expert_tp", simulation.expert_tp, answers | prompts | parts),
        ("head_tp", simulation.head_tp, answers | prompts | parts),
    ):
        for of, dies in sizes.items():
            if dies % tp:
                raise ConfigError(f"[simulation] {name} = {tp} does not divide the {dies} dies of {of}: change either")
    layout = simulation.prefill_attention
    if simulation.prefill_attention_tp > 1 and layout not in {"device", "data-parallel"}:
        raise ConfigError(
            f'[simulation] prefill_attention = "{layout}" is over all dies, but prefill_attention_tp ='
            f" {simulation.prefill_attention_tp} over groups of them: set one of them"
        )
    if simulation.expert_dies:
        _check_experts_apart(config)


def _check_experts_apart(config: ServeConfig) -> None:
    """Refuse a number of expert dies that leaves none for attention, or that the cost model does not cover."""
    simulation, dies, scaler = config.simulation, config.decode.dies_per_instance, config.autoscaler
    name, attention = f"[simulation] expert_dies = {simulation.expert_dies}", dies - simulation.expert_dies
    if attention < 1:
        raise ConfigError(
            f"{name} leaves none of the {dies} dies of [decode] for attention: lower it, or raise npus_per_instance"
        )
    if attention % simulation.domains:
        raise ConfigError(
            f"[simulation] domains = {simulation.domains} does not divide {attention} attention dies, which {name} "
            f"leaves of {dies}: change one of them"
        )
    for other in ("decode_attention_tp", "head_tp", "expert_tp"):
        if getattr(simulation, other) > 1:
            raise ConfigError(f"[simulation] {other} together with {name} is not priced: set it to 1")
    if config.one_pool:
        mode = f'[serving] mode = "{config.serving.mode}"'
        raise ConfigError(f"{name} is of decode instances, and {mode} has none: set it to 0")
    if scaler.policy != "none" and (step := scaler.decode_step_npus):
        fewest = scaler.min_decode_npus * DIES_PER_NPU - simulation.expert_dies
        if fewest < 1 or fewest % simulation.domains or step * DIES_PER_NPU % simulation.domains:
            raise ConfigError(
                f"{name}: [autoscaler] min_decode_npus = {scaler.min_decode_npus} leaves {max(0, fewest)} dies for"
                f" attention and decode_step_npus = {step} adds {step * DIES_PER_NPU}: both must be multiples of"
                f" [simulation] domains = {simulation.domains}, and the first above 0"
            )


def check_acceptance(config: ServeConfig) -> None:
    """Refuse acceptance rates for fewer positions than there are drafts, and a draft model that drafts nothing.

    Raises: ConfigError.
    """
    acceptance, drafts = config.simulation.acceptance, config.simulation.drafts
    if config.simulation.draft_model and not drafts:
        raise ConfigError("[simulation] draft_model drafts nothing with drafts = 0: set drafts, or leave it out")
    if isinstance(acceptance, tuple) and len(acceptance) < drafts:
        raise ConfigError(
            f"[simulation] acceptance has {len(acceptance)} positions, but drafts = {drafts}: give one for each draft"
        )
