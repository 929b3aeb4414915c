"""Placement of a group's ranks, as requested from Ray."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import ray

from serving.group.core.group_sides import GroupSizes
from serving.group.core.rank_life import placement_group_name
from serving.group.live import group_places as places
from serving.group.live.group_places import NoPlaceYetError, RankKind, placed_groups, placement, remove_placement
from serving.values.group import RankRole

SESSION, GROUP = "5e55", "decode#abc"
KINDS = [RankKind(GroupSizes(2, 8), {"NPU": 1.0})]
ROLES = [
    RankKind(GroupSizes(2, 8, role=RankRole.ATTENTION), {"NPU": 1.0}),
    RankKind(GroupSizes(1, 8, role=RankRole.EXPERTS), {"NPU": 4.0}),
]
FIRST = placement_group_name(SESSION, GROUP)


@dataclass
class FakeTable:
    """Ray's table of placement groups: bundles and their node, by name."""

    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    made: list[tuple[str, int, Any]] = field(default_factory=list)
    """Name, bundles, and the requested node."""
    removed: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)

    def table(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"name": name, "state": "CREATED", "bundles": [{}] * count, "bundles_to_node_id": {0: node}}
            for name, (count, node) in self.rows.items()
        }

    def make(self, bundles: list[Any], strategy: str, name: str, bundle_label_selector: Any = None, **_: Any) -> str:
        node = bundle_label_selector[0]["ray.io/node-id"] if bundle_label_selector else None
        self.made.append((name, len(bundles), node))
        self.rows[name] = len(bundles), node or ""
        self.strategies.append(strategy)
        return name

    def remove(self, name: str) -> None:
        self.removed.append(name)
        del self.rows[name]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> FakeTable:
    fake = FakeTable()
    monkeypatch.setattr(ray.util, "placement_group_table", fake.table)
    monkeypatch.setattr(ray.util, "get_placement_group", lambda name: name)
    monkeypatch.setattr(places, "placement_group", fake.make)
    monkeypatch.setattr(places, "remove_placement_group", fake.remove)
    return fake


def place(rank: int, kinds: list[RankKind] = KINDS, *, across_nodes: bool = False) -> tuple[object, int]:
    """Name of a rank's placement group, and its bundle in it."""
    return placement(SESSION, GROUP, rank, kinds, across_nodes=across_nodes)


def test_the_first_ranks_share_a_place(table: FakeTable) -> None:
    assert place(0) == (FIRST, 0)
    assert place(1) == (FIRST, 1)
    assert table.made == [(FIRST, 2, None)]


def test_one_that_is_added_has_its_own_beside_them(table: FakeTable) -> None:
    table.rows[FIRST] = 2, ""
    with pytest.raises(NoPlaceYetError):
        place(2)
    table.rows[FIRST] = 2, "node-a"
    assert place(2) == (f"{FIRST}.r2", 0)
    assert place(2) == (f"{FIRST}.r2", 0)
    assert table.made == [(f"{FIRST}.r2", 1, "node-a")], "once"


def test_a_group_that_may_be_spread_is_packed_and_grows_anywhere(table: FakeTable) -> None:
    assert place(0, across_nodes=True) == (FIRST, 0)
    table.rows |= {FIRST: (2, "node-a"), f"{FIRST}.r3": (1, "node-b")}
    assert place(3, across_nodes=True) == (f"{FIRST}.r3", 0), "where it is"
    assert place(2, across_nodes=True) == (f"{FIRST}.r2", 0)
    assert table.made == [(FIRST, 2, None), (f"{FIRST}.r2", 1, None)]
    assert table.strategies == ["PACK", "STRICT_PACK"], "one rank is on one node"
    assert table.removed == []


def test_one_that_was_added_follows_its_group_to_another_node(table: FakeTable) -> None:
    """Windows are shared memory of one host: when all ranks of a node were lost, the first place moves."""
    table.rows = {FIRST: (2, "node-b"), f"{FIRST}.r2": (1, "node-a"), f"{FIRST}.r3": (1, "")}
    assert place(2) == (f"{FIRST}.r2", 0)
    assert table.removed == [f"{FIRST}.r2"]
    assert table.made == [(f"{FIRST}.r2", 1, "node-b")]
    assert place(3) == (f"{FIRST}.r3", 0)
    assert len(table.made) == 1, "one that is nowhere yet waits for the node that it was asked for"


def test_places_are_given_back_one_by_one_or_all(table: FakeTable) -> None:
    table.rows = {FIRST: (2, "a"), f"{FIRST}.r2": (1, "a"), placement_group_name(SESSION, "decode#other"): (2, "a")}
    remove_placement(SESSION, GROUP, 2)
    assert table.removed == [f"{FIRST}.r2"]
    remove_placement(SESSION, GROUP)
    assert table.removed[1:] == [FIRST]


def test_ranks_of_two_kinds_have_places_of_different_sizes(table: FakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(8, ROLES) == (FIRST, 2)
    table.rows[FIRST] = 3, "node-a"
    assert place(1, ROLES) == (FIRST, 1)
    assert place(2, ROLES) == (f"{FIRST}.r2", 0)
    assert place(9, ROLES) == (f"{FIRST}.r9", 0)
    assert table.made == [(FIRST, 3, None), (f"{FIRST}.r2", 1, "node-a"), (f"{FIRST}.r9", 1, "node-a")]
    free = {"node-a": {"NPU": 5.0}, "node-b": {"NPU": 6.0}}
    monkeypatch.setattr(ray._private.state, "available_resources_per_node", lambda: free)
    room = placed_groups(SESSION, "decode", ROLES).room
    assert room == {(GROUP, RankRole.ATTENTION): 3 + 5, (GROUP, RankRole.EXPERTS): 2 + 1}
    room = placed_groups(SESSION, "decode", KINDS, across_nodes=True).room
    assert room == {(GROUP, RankRole.BOTH): 4 + 5 + 6}, "also on other nodes"
