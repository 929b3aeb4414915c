"""Trial of placement policies on a routing trace: planned on every other slice, judged on the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from serving.errors import PlacementError
from serving.group.core.load import LayerLoad, total
from serving.group.core.placement import GroupShape, StaticPlacement
from serving.group.core.placement_policies import policy_of
from serving.group.core.split import balancedness, rank_loads, split

TRIED = ("static", "time_sliced", "global", "hierarchical")


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """Result of one policy.

    Args:
        balancedness: mean over largest of the ranks' rows, by layer; 1 = even. Its reciprocal is what the cost model
            calls imbalance.
    """

    policy: str
    balancedness: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of all layers."""
        return fmean(self.balancedness)

    @property
    def worst(self) -> float:
        """Balancedness of the worst layer."""
        return min(self.balancedness)


def try_policies(loads: Sequence[LayerLoad], ranks: int, redundant: int, groups: int = 1) -> list[PolicyTrial]:
    """Balancedness of all policies for a group of such a size.

    Args:
        loads: [layer][slice][expert].
        redundant: expert slots of a rank in addition to its share.
        groups: of experts in the model's router.
    Raises: PlacementError without load, or for a group that cannot be.
    """
    if not loads or len(loads[0]) < 2:
        raise PlacementError("at least two slices with rows are needed: one to plan on, and one to judge by")
    experts = len(loads[0][0])
    if not 1 <= ranks <= experts * (redundant + 1):
        raise PlacementError(f"{ranks} ranks for {experts} experts of a layer")
    slots = -(-experts // ranks) + redundant
    shape = GroupShape((slots,) * ranks, (0,) * ranks)
    busy = [load for load in loads if any(map(sum, load))]
    if not busy:
        raise PlacementError("the trace has no rows")
    return [PolicyTrial(name, tuple(_one(name, load, experts, shape, groups) for load in busy)) for name in TRIED]


def _one(name: str, load: LayerLoad, experts: int, shape: GroupShape, groups: int) -> float:
    ranks = len(shape.slots)
    first = StaticPlacement().place(load, experts, shape)
    policy = policy_of(name, groups) or StaticPlacement()
    placed = policy.place(load[::2], experts, shape, first)
    return balancedness(rank_loads(split(placed, total(load[::2], experts)), total(load[1::2], experts), ranks))
