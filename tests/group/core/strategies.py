"""Layers and groups of any size for Hypothesis."""

from hypothesis import strategies as st

from serving.group.core.placement import GroupShape, PlacementPolicy, StaticPlacement
from serving.group.core.placement_policies import GlobalPlacement, HierarchicalPlacement, TimeSlicedPlacement

POLICIES: dict[str, PlacementPolicy] = {
    "static": StaticPlacement(),
    "global": GlobalPlacement(),
    "hierarchical": HierarchicalPlacement(groups=3),
    "time_sliced": TimeSlicedPlacement(),
}


@st.composite
def groups(draw: st.DrawFn, most_ranks: int = 6) -> GroupShape:
    """Groups whose ranks may differ in slots, may have none, and are on up to three nodes."""
    ranks = draw(st.integers(1, most_ranks))
    slots = draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks).filter(any))
    return GroupShape(tuple(slots), tuple(sorted(draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)))))


@st.composite
def layers(draw: st.DrawFn) -> tuple[GroupShape, int, tuple[tuple[int, ...], ...]]:
    """A group, a number of experts that fits, and their tokens by slice."""
    shape = draw(groups())
    experts = draw(st.integers(1, sum(shape.slots)))
    row = st.tuples(*[st.integers(0, 1000)] * experts)
    return shape, experts, tuple(draw(st.lists(row, max_size=3)))
