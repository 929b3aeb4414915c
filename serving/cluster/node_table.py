"""Numbers of hosts: each Ray node gets the number of its first host once, unique while the node is alive. Precedence:

    label, unless other live nodes have the same one  >  marks on its disk
    >  a label that other nodes have too  >  number of a node that died on the same machine  >  the first free range

A Ray node may represent the NPUs of several hosts and then has as many numbers. Pure; the table is one value.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from serving.errors import LedgerError
from serving.ids import NodeId

MOST_HOSTS = 4096
"""Limit of the numbers: 85 supernodes of 48 hosts. A larger label is ignored."""
MOST_GONE = 64
"""Dead nodes whose numbers are kept for their return; those numbered first are dropped first."""


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node that requests a number.

    Args:
        hosts: number of hosts it represents.
        wish: number of its label; None = none.
        marks: numbers recorded on its disk by an earlier run.
        machine: identifies the machine, for example its address.
    """

    node: NodeId
    hosts: int = 1
    wish: int | None = None
    marks: tuple[int, ...] = ()
    machine: str = ""


@dataclass(frozen=True, slots=True)
class NumberedNode:
    """A node and its numbers: `hosts` of them, from `first` on."""

    node: NodeId
    first: int
    hosts: int = 1
    machine: str = ""

    def overlaps(self, first: int, hosts: int) -> bool:
        """Whether a range has a number of this node."""
        return self.first < first + hosts and first < self.first + self.hosts


@dataclass(frozen=True, slots=True)
class NodeTable:
    """All nodes that have numbers, including dead ones, in the order of assignment."""

    nodes: tuple[NumberedNode, ...] = ()

    def number(self, node: NodeId) -> int | None:
        """First host of a node; None if it has none yet."""
        return next((one.first for one in self.nodes if one.node == node), None)

    def check(self) -> None:
        """Raises: LedgerError if two nodes share a number, or one occurs twice."""
        for index, one in enumerate(self.nodes):
            for other in self.nodes[:index]:
                if one.node == other.node or one.overlaps(other.first, other.hosts):
                    raise LedgerError(f"{one} and {other} share a number")


def numbered(
    table: NodeTable, claims: Iterable[NodeClaim], alive: Collection[NodeId], equal: Collection[int] = ()
) -> NodeTable:
    """The table extended by the missing claims; claims with a unique label first.

    Args:
        claims: of live nodes.
        alive: all live nodes.
        equal: labels that several live nodes have, whether these claim or not.
    Raises: LedgerError if there is no number left.
    """
    asked = [claim for claim in claims if table.number(claim.node) is None]
    for claim in sorted(asked, key=lambda claim: claim.wish is None or claim.wish in equal):
        table = _with(table, claim, alive, alone=claim.wish not in equal)
    return table


def equal_labels(claims: Iterable[NodeClaim]) -> set[int]:
    """Labels that several of these nodes have."""
    wishes = [claim.wish for claim in claims if claim.wish is not None]
    return {wish for wish in wishes if wishes.count(wish) > 1}


def _with(table: NodeTable, claim: NodeClaim, alive: Collection[NodeId], *, alone: bool) -> NodeTable:
    living = [one for one in table.nodes if one.node in alive]
    gone = [one for one in table.nodes if one.node not in alive][-MOST_GONE:]
    wanted = (
        first
        for first in _candidates(claim, gone, alone=alone)
        if _possible(first, claim.hosts) and not any(one.overlaps(first, claim.hosts) for one in living)
    )
    free = (_next_free(claim.hosts, taken) for taken in ([*living, *gone], living))
    first = next((first for first in chain(wanted, free) if first is not None), None)
    if first is None:
        raise LedgerError(f"no {claim.hosts} numbers of hosts are left below {MOST_HOSTS}")
    kept = [one for one in table.nodes if one in living or (one in gone and not one.overlaps(first, claim.hosts))]
    return NodeTable((*kept, NumberedNode(claim.node, first, claim.hosts, claim.machine)))


def _candidates(claim: NodeClaim, gone: Iterable[NumberedNode], *, alone: bool) -> Iterator[int]:
    wish = [claim.wish] if claim.wish is not None else []
    yield from wish if alone else ()
    yield from claim.marks
    yield from wish
    if claim.machine:
        yield from (one.first for one in gone if one.machine == claim.machine and one.hosts == claim.hosts)


def _possible(first: int, hosts: int) -> bool:
    return first >= 0 and first + hosts <= MOST_HOSTS


def _next_free(hosts: int, taken: Iterable[NumberedNode]) -> int | None:
    first = 0
    for one in sorted(taken, key=lambda one: one.first):
        if one.overlaps(first, hosts):
            first = one.first + one.hosts
    return first if _possible(first, hosts) else None
