"""The board's access to the cluster: Serve's controller, Ray's nodes, membership, the KV-cache pool's controller.

`get_serve_instance_details` and `update_deployment_replicas` of Serve's controller are the calls behind the REST API of
Ray's dashboard. They are not a stable interface, so only this file calls them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import ray

from hardware.ray_resources import NPU, UB_MEMORY
from serving.cluster.disk_watch import own_full_disk
from serving.cluster.gcs_store import ActorLookup
from serving.cluster.membership import DISK_FULL, NAMESPACE, Member, post_order, read_members
from serving.cluster.membership import NAME as MEMBERSHIP
from serving.cluster.node_numbers import NodeNumbers, NodeTable, number_nodes
from serving.cluster.nodes import ON_HEAD_NODE
from serving.cluster.serve_replicas import scale_down
from serving.deadline import within
from serving.errors import LedgerError, SilentError
from serving.ids import NodeId
from serving.kvpool.live.pool_control import NAME as POOL_CONTROL
from serving.scaling.core.cluster_snapshot import (
    ClusterSnapshot,
    LostNode,
    ReplicaPhase,
    SeenDeployment,
    SeenMember,
    SeenNode,
    SeenReplica,
)
from serving.scaling.live.cluster_port import ClusterSilentError, steady_s
from serving.values.group import OperatorOrder, OrderAnswer, SizeOrder
from serving.values.pool_view import PoolView

logger = logging.getLogger(__name__)

CONTROLLER = "SERVE_CONTROLLER_ACTOR"
CONTROLLER_NAMESPACE = "serve"
CALL_DEADLINE_S = 2.0
ORDER_DEADLINE_S = 3.0
"""For the shell of a group, which polls for commands every half second."""
REMEMBER_S = 10.0
"""How long a replica in Serve remains a member without being listed; longer than instances need to announce again."""
_LEAVING = frozenset({"STOPPING", "STOPPED", "PENDING_MIGRATION"})
_SERVING = frozenset({"RUNNING", "UPDATING"})


class RayCluster:
    """The `ClusterPort` of a running system.

    Args:
        app: name of the Serve application.
        pools: its deployments that are pools.
        with_cache: whether there is a KV-cache pool to query.
    """

    def __init__(self, app: str, pools: Iterable[str], *, with_cache: bool) -> None:
        self._app = app
        self._pools = tuple(pools)
        self._with_cache = with_cache
        self._actors: dict[str, Any] = {}
        self._lookups: dict[str, ActorLookup] = {}
        self._nodes = NodesSeen()
        self._listing = ActorLookup(self._nodes.poll)
        self._met: dict[str, float] = {}
        """When each member was last listed."""

    async def poll(self, before: ClusterSnapshot) -> ClusterSnapshot:
        """Snapshot of the cluster, see `ClusterPort.poll`."""
        details, nodes, members, cache = await asyncio.gather(
            self._ask(CONTROLLER, CONTROLLER_NAMESPACE, lambda actor: actor.get_serve_instance_details.remote()),
            self._list_nodes(),
            self._or_none(MEMBERSHIP, lambda actor: read_members(actor)),
            self._or_none(POOL_CONTROL, lambda actor: actor.view.remote()) if self._with_cache else _nothing(),
        )
        application = details["applications"].get(self._app, {"deployments": {}})
        listed = application["deployments"]
        seen = {name: self._living(seen_deployment(one)) for name, one in listed.items()}
        deployments = {name: one for name, one in seen.items() if name in self._pools}
        others = {name: one for name, one in seen.items() if name not in self._pools}
        now = steady_s()
        known = before.members if members is None else self._members(seen_members(members), before, deployments, now)
        view: PoolView | None = cache if cache is not None else before.cache
        deployments = {name: at_its_ranks(one, known.values()) for name, one in deployments.items()}
        here = NodeId(ray.get_runtime_context().get_node_id()), own_full_disk()
        nodes = with_full_disks(nodes, known.values(), here)
        return ClusterSnapshot(now, deployments, nodes, known, view, others, self._nodes.lost, self._nodes.left)

    async def set_target(self, pool: str, replicas: int, leaving: Sequence[str] = ()) -> None:
        """Set a pool's target in Serve, see `ClusterPort.set_target`."""
        deployment = await asyncio.to_thread(_deployment_id, pool, self._app)

        def order(actor: Any) -> Awaitable[Any]:
            if leaving:
                return cast("Awaitable[Any]", actor.__ray_call__.remote(scale_down, deployment, replicas, leaving))
            return cast("Awaitable[Any]", actor.update_deployment_replicas.remote(deployment, replicas))

        await self._ask(CONTROLLER, CONTROLLER_NAMESPACE, order)

    async def order(self, actor: str, order: OperatorOrder | SizeOrder) -> OrderAnswer:
        """Send a command to a group within `ORDER_DEADLINE_S`, see `ClusterPort.order`."""
        return await post_order(actor, order, ORDER_DEADLINE_S)

    def _members(
        self, listed: dict[str, SeenMember], before: ClusterSnapshot, deployments: dict[str, SeenDeployment], now: float
    ) -> dict[str, SeenMember]:
        """Listed members, and for `REMEMBER_S` former ones whose replica is still in Serve: a restarted membership has
        no members at first, which must not appear as if all sequences had ended and restarted.
        """
        here = {replica.name for deployment in deployments.values() for replica in deployment.replicas}
        self._met |= dict.fromkeys(listed, now)
        self._met = {name: at for name, at in self._met.items() if now - at <= REMEMBER_S}
        former = {name: one for name, one in before.members.items() if name in self._met and one.serve_name in here}
        return former | listed

    async def prepare(self) -> None:
        """Import the modules for the first scaling call in advance, which takes most of a second."""
        await asyncio.to_thread(_deployment_id, "", self._app)

    def _living(self, seen: SeenDeployment) -> SeenDeployment:
        """The deployment without replicas on lost nodes, which Serve lists until their health checks fail."""
        return replace(seen, replicas=tuple(one for one in seen.replicas if not self._nodes.gone(one.node)))

    async def _list_nodes(self) -> tuple[SeenNode, ...]:
        try:
            found: tuple[SeenNode, ...] = await self._listing.answer(CALL_DEADLINE_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise ClusterSilentError(f"Ray does not list its nodes ({type(error).__name__})") from error
        return found

    async def _or_none(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Response of one of our own actors; None if it does not respond, so that the previous response is used."""
        try:
            return await self._ask(name, NAMESPACE, call)
        except ClusterSilentError as error:
            logger.debug("%s", error)
            return None

    async def _ask(self, name: str, namespace: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        lookup = self._lookups.setdefault(name, ActorLookup(partial(ray.get_actor, name, namespace)))

        async def answer() -> Any:
            actor = self._actors.get(name) or await lookup.answer(CALL_DEADLINE_S)
            self._actors[name] = actor
            return await call(actor)

        try:
            return await within(answer(), CALL_DEADLINE_S)
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            self._actors.pop(name, None)
            raise ClusterSilentError(f"{name} does not answer ({type(error).__name__})") from error


def seen_deployment(details: dict[str, Any]) -> SeenDeployment:
    """Target and replicas from a deployment's details of Serve's controller."""
    replicas = tuple(
        SeenReplica(
            name=replica["replica_id"],
            phase=_phase(str(getattr(replica["state"], "value", replica["state"]))),
            node=NodeId(replica["node_id"]) if replica.get("node_id") else None,
            pid=replica.get("pid"),
            started_at=float(replica.get("start_time_s") or 0.0),
        )
        for replica in details["replicas"]
    )
    return SeenDeployment(int(details["target_num_replicas"]), replicas)


def seen_members(members: Iterable[Member]) -> dict[str, SeenMember]:
    """Members by Serve's name of their replica, or by the name of their rank."""
    return {
        one.replica.rpartition("#")[2]: SeenMember(one.replica, one.pool, one.incarnation, one.facts, one.node)
        for one in members
    }


def at_its_ranks(seen: SeenDeployment, members: Iterable[SeenMember]) -> SeenDeployment:
    """The deployment with each shell on its ranks' node and their number, because the ranks use the hardware."""
    ranks = [one for one in members if "shell" in one.facts and one.node is not None]
    places, counts = {one.serve_name: one.node for one in ranks}, Counter(one.serve_name for one in ranks)
    for one in ranks:  # a lost rank keeps its place
        counts[one.serve_name] = max(counts[one.serve_name], int(one.facts["ranks"]))
    moved = (replace(one, node=places.get(one.name, one.node), ranks=counts[one.name]) for one in seen.replicas)
    return replace(seen, replicas=tuple(moved)) if places else seen


def with_full_disks(
    nodes: Iterable[SeenNode], members: Iterable[SeenMember], here: tuple[NodeId, str]
) -> tuple[SeenNode, ...]:
    """Nodes with the messages about full disks that their members announce.

    Args:
        here: node of the board and its own message, which is needed if all instances on the node are lost.
    """
    lines = {one.node: line for one in members if (line := one.facts.get(DISK_FULL))} | dict([here])
    return tuple(replace(node, disk_full=lines.get(node.node) or "") for node in nodes)


def _phase(state: str) -> ReplicaPhase:
    if state in _LEAVING:
        return ReplicaPhase.DRAINING
    return ReplicaPhase.SERVING if state in _SERVING else ReplicaPhase.STARTING


def _deployment_id(pool: str, app: str) -> Any:
    from ray.serve._private.common import DeploymentID  # a slow import, needed only for scaling

    return DeploymentID(name=pool, app_name=app)


async def _nothing() -> None:
    return None


# Ray's nodes, live and lost, with the numbers of their hosts; the board numbers nodes without one.

UNUSED_S = 60.0
"""How long a node without a label stays without a number: the first of our processes on it may find the node's former
number on its disk."""
SHOWN_LOST_S = 3600.0
"""How long a lost node is shown."""
_ASKED_FOR = frozenset({1, 4})
"""Reasons that are not a loss: Ray's EXPECTED_TERMINATION and AUTOSCALER_DRAIN_IDLE of `NodeDeathInfo`."""


class NodesSeen:
    """The nodes at each poll. Calls block and must not overlap.

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
        """When each live node was first observed."""
        self._lost_at: dict[NodeId, float] = {}
        self.lost: tuple[LostNode, ...] = ()
        """Nodes that were dead at the last poll, and whose numbers no live node has."""
        self.left: frozenset[NodeId] = frozenset()
        """Nodes that had been shut down on request by the last poll."""

    def gone(self, node: NodeId | None) -> bool:
        """Whether a node was dead at the last poll."""
        return node in self._lost_at

    def poll(self) -> tuple[SeenNode, ...]:
        """Live nodes by number. Also numbers nodes after `UNUSED_S`, and updates `lost` and `left`.

        Raises: the exceptions of `ray.nodes`.
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
            logger.debug("%s", error)  # nodes keep their current names
        except LedgerError as error:
            logger.warning("%s", error)

    def _node(self, one: dict[str, Any]) -> SeenNode:
        node, has = NodeId(one["NodeID"]), one["Resources"]
        number, address = self._table.number(node), str(one["NodeManagerAddress"])
        known = self._seen.get(node)
        if not has and known is not None:  # about to be declared dead: Ray clears its resources first
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
