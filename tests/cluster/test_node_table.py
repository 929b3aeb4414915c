"""Numbers of hosts: labels are requests, living nodes never share a number, and a returning node gets its old one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.cluster.node_numbers import (
    MOST_GONE,
    MOST_HOSTS,
    NodeClaim,
    NodeTable,
    NumberedNode,
    equal_labels,
    numbered,
)
from serving.errors import LedgerError
from serving.ids import NodeId

A, B, C = (NodeId(name) for name in "abc")


def firsts(*claims: NodeClaim, table: NodeTable = NodeTable(), alive: str = "abc") -> list[int | None]:  # noqa: B008
    """Numbers that these simultaneous claims get."""
    after = numbered(table, claims, {NodeId(name) for name in alive}, equal_labels(claims))
    after.check()
    return [after.number(claim.node) for claim in claims]


def test_a_label_is_a_wish() -> None:
    assert firsts(NodeClaim(A, wish=5), NodeClaim(B), NodeClaim(C, wish=0)) == [5, 1, 0]
    assert firsts(NodeClaim(A, wish=MOST_HOSTS), NodeClaim(B, 2, wish=MOST_HOSTS - 1)) == [0, 1], "beyond the end"


def test_equal_labels_are_told_apart() -> None:
    assert firsts(NodeClaim(A, wish=3), NodeClaim(B, wish=3), NodeClaim(C, wish=3)) == [3, 0, 1]
    assert equal_labels([NodeClaim(A, wish=3), NodeClaim(B, wish=3), NodeClaim(C)]) == {3}


def test_a_node_with_many_npus_takes_several_numbers() -> None:
    assert firsts(NodeClaim(A, 3), NodeClaim(B, 2), NodeClaim(C)) == [0, 3, 5]
    assert firsts(NodeClaim(A, 3, wish=1), NodeClaim(B, 2), NodeClaim(C)) == [1, 4, 0]
    assert firsts(NodeClaim(A, 3, wish=1), NodeClaim(B, wish=3)) == [1, 0], "in the middle of another's range"


def test_marks_on_the_disk_are_believed_unless_somebody_has_the_number() -> None:
    assert firsts(NodeClaim(A, marks=(7,)), NodeClaim(B, marks=(7, 9))) == [7, 9]
    assert firsts(NodeClaim(A, wish=0, marks=(4,)), NodeClaim(B, wish=0)) == [4, 0], "an equal label says less"
    assert firsts(NodeClaim(A, wish=2, marks=(4,))) == [2], "a label of its own says more"


def test_a_node_that_returns_gets_its_number() -> None:
    table = NodeTable((NumberedNode(A, 0, machine="m"), NumberedNode(B, 1, machine="n"), NumberedNode(C, 2)))
    back, new = NodeId("d"), NodeId("e")
    assert firsts(NodeClaim(back, machine="n"), table=table, alive="acd") == [1]
    assert firsts(NodeClaim(new, machine="p"), table=table, alive="ace") == [3], (
        "a stranger takes no dead node's number"
    )
    assert firsts(NodeClaim(back, machine="m"), table=table, alive="abcd") == [3], "its own is in use"
    assert firsts(NodeClaim(back, marks=(1,)), table=table, alive="acd") == [1]


def test_dead_nodes_are_forgotten_in_the_end() -> None:
    table = NodeTable()
    for index in range(MOST_GONE + 10):
        node = NodeId(f"n{index}")
        table = numbered(table, [NodeClaim(node)], {node})
    assert len(table.nodes) == MOST_GONE + 1


def test_numbers_of_dead_nodes_are_taken_before_there_are_none() -> None:
    table = NodeTable((NumberedNode(A, 0, MOST_HOSTS - 1), NumberedNode(B, MOST_HOSTS - 1)))
    assert firsts(NodeClaim(C), table=table, alive="ac") == [MOST_HOSTS - 1]
    with pytest.raises(LedgerError, match="no 1 numbers"):
        firsts(NodeClaim(C), table=table)


def test_check_finds_shared_numbers() -> None:
    for other in (NumberedNode(A, 5), NumberedNode(B, 2)):
        with pytest.raises(LedgerError, match="share a number"):
            NodeTable((NumberedNode(A, 0, 3), other)).check()


class Nodes(RuleBasedStateMachine):
    """Nodes join, claim, die and return, in any order; machines keep their marks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NodeTable()
        self.claims: dict[NodeId, NodeClaim] = {}
        self.given: dict[NodeId, int] = {}
        self.born = 0

    @rule(
        hosts=st.integers(1, 3),
        wish=st.none() | st.integers(0, 6),
        marks=st.lists(st.integers(0, 6), max_size=2).map(tuple),
        machine=st.sampled_from(["", "m", "n"]),
    )
    def join(self, hosts: int, wish: int | None, marks: tuple[int, ...], machine: str) -> None:
        node = NodeId(f"node-{self.born}")
        self.born += 1
        self.claims[node] = NodeClaim(node, hosts, wish, marks, machine)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        asking = data.draw(st.lists(st.sampled_from(sorted(self.claims)), min_size=1, unique=True))
        claims = [self.claims[node] for node in asking]
        self.table = numbered(self.table, claims, set(self.claims), equal_labels(self.claims.values()))
        for node in asking:
            first = self.table.number(node)
            assert first is not None
            self.given.setdefault(node, first)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.claims)))
        del self.claims[node]
        self.given.pop(node, None)

    @invariant()
    def numbers_are_kept_and_nobody_shares_one(self) -> None:
        self.table.check()
        assert {node: self.table.number(node) for node in self.given} == self.given

    @invariant()
    def a_label_of_its_own_is_heard(self) -> None:
        """Unless another living node had that number before."""
        wishes = [claim.wish for claim in self.claims.values()]
        for node, first in self.given.items():
            claim = self.claims[node]
            if claim.wish is None or first == claim.wish or wishes.count(claim.wish) > 1:
                continue
            earlier = [one for one in self.table.nodes if one.overlaps(claim.wish, claim.hosts)]
            assert earlier or self.born > len(self.claims), f"{claim} got {first}"


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=15, stateful_step_count=30)
