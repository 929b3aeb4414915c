"""Table of host numbers of a Ray cluster, in its control store; each process without a number extends it.

Each version of the table has a key of its own, set only if absent: of two concurrent writers, one fails and retries on
top of the other's version. So no two nodes get the same number, and numbers survive a restart of all parts except the
control store.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgspec
import ray

from hardware.ray_resources import NODE_LABEL, NPU
from hardware.topology import NPUS_PER_HOST
from serving.cluster.gcs_store import ActorLookup, GcsStore
from serving.errors import LedgerError, SilentError, UnavailableError
from serving.ids import NodeId

# Numbers of hosts: each Ray node gets the number of its first host once, unique while the node is alive. Precedence:
#
#     label, unless other live nodes have the same one  >  marks on its disk
#     >  a label that other nodes have too  >  number of a node that died on the same machine  >  the first free range
#
# A Ray node may represent the NPUs of several hosts and then has as many numbers. Pure; the table is one value.

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


# Table of host numbers of a Ray cluster, in its control store; each process without a number extends it.

logger = logging.getLogger(__name__)

PREFIX = "nodes/"
KEPT_VERSIONS = 4
"""Older versions are deleted; a reader whose version was deleted in the meantime reads again."""
LIST_DEADLINE_S = 5.0
SERVER_NAME = "kvcache-"
"""Memory servers, and their folders on disk, are named `kvcache-<number>-<index>`."""


class TableStore(Protocol):
    """The methods of `GcsStore` that the table needs."""

    def get(self, key: str) -> bytes | None: ...

    def put_if_absent(self, key: str, value: bytes) -> bytes: ...

    def delete(self, key: str) -> bool: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class NodeNumbers:
    """The table in the store. Calls block; thread-safe.

    Raises: every call raises SilentError if the store does not respond in time.
    """

    def __init__(self, store: TableStore | None = None) -> None:
        self._store = store or GcsStore()

    def read(self) -> NodeTable:
        """Latest table."""
        return self._newest()[1]

    def add(self, claims: Iterable[NodeClaim], alive: Collection[NodeId], equal: Collection[int] = ()) -> NodeTable:
        """Assign numbers to nodes that have none, see `numbered`. Returns: the resulting table.

        Raises: LedgerError if there are no numbers left.
        Effects: adds a version to the store, if any node lacked a number.
        """
        claims = tuple(claims)
        while True:
            version, table = self._newest()
            wanted = numbered(table, claims, alive, equal)
            if wanted == table:
                return table
            own, value = _key(version + 1), msgspec.json.encode(wanted)
            if self._store.put_if_absent(own, value) != value:
                continue  # another process was first
            if self._newest()[0] > version + 1:  # the version had been deleted already: this write does not count
                continue
            self._forget(version + 1 - KEPT_VERSIONS)
            return wanted

    def _newest(self) -> tuple[int, NodeTable]:
        while True:
            versions = self._store.keys(PREFIX)
            if not versions:
                return 0, NodeTable()
            value = self._store.get(versions[-1])
            if value is not None:
                return int(versions[-1].removeprefix(PREFIX)), msgspec.json.decode(value, type=NodeTable)

    def _forget(self, last: int) -> None:
        for key in self._store.keys(PREFIX):
            if int(key.removeprefix(PREFIX)) <= last:
                self._store.delete(key)


def own_number(marks: Sequence[int] = (), numbers: NodeNumbers | None = None) -> int:
    """The number of this process's Ray node, assigned if it has none. Blocks; for processes that Ray started.

    Args:
        marks: numbers recorded on this node's disk, see `disk_marks`.
    Raises: SilentError if Ray's control store does not respond; UnavailableError if Ray has declared this node dead.
    Effects: also assigns numbers to nodes with a label of their own.
    """
    node = NodeId(ray.get_runtime_context().get_node_id())
    numbers = numbers or NodeNumbers()
    found = numbers.read().number(node)
    if found is not None:
        return found
    table = number_nodes(numbers, _listed(), {node}, marks)
    first = table.number(node)
    if first is None:
        raise UnavailableError(f"Ray has given up this node ({node[:12]}); its processes must stop")
    logger.info("this node (%s) is n%d", node[:12], first)
    return first


def number_nodes(
    numbers: NodeNumbers, listed: Iterable[dict[str, Any]], asking: Collection[NodeId], marks: Sequence[int] = ()
) -> NodeTable:
    """Assign numbers to some nodes, and to all with a label of their own. Returns: the resulting table.

    Args:
        listed: all nodes, as `ray.nodes` lists them.
        asking: nodes that get a number even without a label, if alive.
        marks: numbers recorded on their disk.
    Raises: SilentError; LedgerError if there are no numbers left.
    Effects: adds a version of the table, if any of these nodes lacked a number.
    """
    claims = {claim.node: claim for claim in map(claim_of, (one for one in listed if one["Alive"]))}
    equal = equal_labels(claims.values())
    for claim in claims.values():
        if claim.node in asking and claim.wish in equal:
            logger.warning("several Ray nodes have the label %s=%s; each gets its own number", NODE_LABEL, claim.wish)
    own = [replace(claim, marks=tuple(marks)) for node, claim in claims.items() if node in asking]
    labelled = [
        claim
        for node, claim in claims.items()
        if node not in asking and claim.wish is not None and claim.wish not in equal
    ]
    return numbers.add([*own, *labelled], set(claims), equal)


def claim_of(node: dict[str, Any]) -> NodeClaim:
    """The claim of a live node, from its entry in `ray.nodes`."""
    label = str(node.get("Labels", {}).get(NODE_LABEL, ""))
    npus = int(node["Resources"].get(NPU, 0))
    machine = f"{node['NodeManagerHostname']} {node['NodeManagerAddress']}"
    wish = int(label) if label.isdecimal() else None
    return NodeClaim(NodeId(node["NodeID"]), max(1, -(-npus // NPUS_PER_HOST)), wish, (), machine)


def disk_marks(ssd_path: str) -> list[int]:
    """Numbers of the memory servers that left folders on this disk, in order.

    Args:
        ssd_path: of the configuration; empty = no such folder.
    """
    found = set()
    with contextlib.suppress(OSError):  # not created yet
        for path in Path(ssd_path).iterdir() if ssd_path else ():
            number = path.name.removeprefix(SERVER_NAME).partition("-")[0]
            if path.name.startswith(SERVER_NAME) and number.isdecimal():
                found.add(int(number))
    return sorted(found)


def _listed() -> list[dict[str, Any]]:
    try:
        nodes: list[dict[str, Any]] = ActorLookup(ray.nodes).wait(LIST_DEADLINE_S)
    except TimeoutError as error:
        raise SilentError("Ray does not list its nodes; try again when its control store (GCS) is back") from error
    return nodes


def _key(version: int) -> str:
    return f"{PREFIX}{version:012d}"
