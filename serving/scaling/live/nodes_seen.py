"""Ray's nodes with the numbers of their hosts, living and lost, for the board, which numbers those without one."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import ray

from hardware.ray_resources import NPU, UB_MEMORY
from serving.cluster.node_numbers import NodeNumbers, number_nodes
from serving.cluster.node_table import NodeTable
from serving.cluster.nodes import ON_HEAD_NODE
from serving.errors import LedgerError, SilentError
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import LostNode, SeenNode
from serving.scaling.live.clock import steady_s

logger = logging.getLogger(__name__)

UNUSED_S = 60.0
"""How long a node without a label has no number while nothing of ours starts there: what starts there first sees the
node's disk, on which its former number may lie."""
SHOWN_LOST_S = 3600.0
"""How long a lost node is shown."""
_ASKED_FOR = frozenset({1, 4})
"""Reasons of an end that is no loss: Ray's EXPECTED_TERMINATION and AUTOSCALER_DRAIN_IDLE of `NodeDeathInfo`."""


class NodesSeen:
    """The nodes at each look. Calls block; one at a time.

    Args:
        listing: lists nodes; by default `ray.nodes`.
    """

    def __init__(
        self,
        numbers: NodeNumbers | None = None,
        listing: Callable[[], list[dict[str, Any]]] | None = None,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self._numbers = numbers or NodeNumbers()
        self._listing = listing or ray.nodes
        self._clock = clock
        self._table = NodeTable()
        self._seen: dict[NodeId, SeenNode] = {}
        self._since: dict[NodeId, float] = {}
        """When each living node was seen first."""
        self._lost_at: dict[NodeId, float] = {}
        self.lost: tuple[LostNode, ...] = ()
        """Nodes that Ray had given up at the last look, and whose numbers no living one has."""
        self.left: frozenset[NodeId] = frozenset()
        """Nodes that had ended by then as they were asked to."""

    def gone(self, node: NodeId | None) -> bool:
        """Whether Ray had given a node up at the last look."""
        return node in self._lost_at

    def look(self) -> tuple[SeenNode, ...]:
        """Living nodes by number. Raises: what Ray raises.

        Effects: nodes that have waited for a number get one; `lost` is as of now.
        """
        listed, now = self._listing(), self._clock()
        alive = [one for one in listed if one["Alive"]]
        self._since = {NodeId(one["NodeID"]): self._since.get(NodeId(one["NodeID"]), now) for one in alive}
        self._number(listed, now)
        living = [self._node(one) for one in alive]
        self._seen |= {node.node: node for node in living}
        self.lost = self._lost(listed, now)
        kept = {one.seen.node for one in self.lost} | set(self._since)
        self._seen = {node: seen for node, seen in self._seen.items() if node in kept}
        return tuple(sorted(living, key=_order))

    def _number(self, listed: list[dict[str, Any]], now: float) -> None:
        unnumbered = [node for node in self._since if self._table.number(node) is None]
        if not unnumbered:
            return
        waited = {node for node in unnumbered if now - self._since[node] > UNUSED_S}
        try:
            self._table = number_nodes(self._numbers, listed, waited)
        except SilentError as error:
            logger.debug("%s", error)  # as they are called now they are called on
        except LedgerError as error:
            logger.warning("%s", error)

    def _node(self, one: dict[str, Any]) -> SeenNode:
        node, has = NodeId(one["NodeID"]), one["Resources"]
        number, address = self._table.number(node), str(one["NodeManagerAddress"])
        known = self._seen.get(node)
        if not has and known is not None:  # about to be given up: Ray forgets what it offers first
            return replace(known, number=number)
        head = any(share in has for share in ON_HEAD_NODE)
        npus, memory, cpus = (int(has.get(share, 0)) for share in (NPU, UB_MEMORY, "CPU"))
        return SeenNode(node, npus, memory, number, address, head, cpus)

    def _lost(self, listed: Iterable[dict[str, Any]], now: float) -> tuple[LostNode, ...]:
        gone = {NodeId(one["NodeID"]): one for one in listed if not one["Alive"]}
        self._lost_at = {node: self._lost_at.get(node, now) for node in gone}
        self.left = frozenset(node for node, one in gone.items() if one.get("DeathReason") in _ASKED_FOR)
        found = []
        for node, one in gone.items():
            number = self._table.number(node)
            if number is None or node in self.left or now - self._lost_at[node] > SHOWN_LOST_S:
                continue
            seen = self._seen.get(node, SeenNode(node, 0, 0, number, str(one["NodeManagerAddress"])))
            found.append(LostNode(seen, self._lost_at[node]))
        return tuple(sorted(found, key=lambda lost: _order(lost.seen)))


def _order(node: SeenNode) -> tuple[bool, int, str]:
    return node.number is None, node.number or 0, node.node
