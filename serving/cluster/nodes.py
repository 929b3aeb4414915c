"""The Ray node of a replica: data and tasks of the replica that depend on it."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from hardware.errors import HardwareError
from hardware.ray_resources import NPU
from hardware.ub.file import remove_stale
from serving.ids import NodeId

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
ON_HEAD_NODE = {"node:__internal_head__": 0.001}
"""Fraction of a resource that only Ray's head node has; requesting it places an actor there. Such an actor depends on
no other node, since Ray itself needs the head.
"""
LOOPBACK = "127.0.0.1"
SEGMENT_PREFIX = "cloudmatrix-ub-"
SWEEP_PERIOD_S = 5.0
"""Interval at which live replicas free the memory of dead ones [s]: a replacement may start on another node, not at
all, or before a frozen replica dies.
"""


def new_segment_path(session: str, node: NodeId, owner: str) -> Path:
    """Path of a replica's UB segment on this node.

    Each replica has its own, exactly as large as the `UB_MEMORY` that it requested from Ray, so that together they
    never exceed what the node offers.

    Args:
        owner: name of the replica within the node.
    Effects: removes segments of this start's dead replicas on this machine.
    """
    sweep(session)
    return SHARED_MEMORY / f"{SEGMENT_PREFIX}{session}-{node[:12]}-{owner}"


def sweep(session: str) -> None:
    """Free UB segments of dead replicas of this start on this machine.

    Raises: OSError, UbMissingError if the folder cannot be read.
    """
    for path in remove_stale(SHARED_MEMORY, f"{SEGMENT_PREFIX}{session}-"):
        logger.info("removed %s, left behind by a dead replica", path)


async def sweep_forever(session: str) -> None:
    """Run `sweep` periodically on a thread until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_PERIOD_S)
        try:
            await asyncio.to_thread(sweep, session)
        except (OSError, HardwareError):
            logger.exception("could not check for memory of dead replicas; trying again")


def own_npu_share() -> float:
    """Fraction of the cluster's NPUs in this machine; 1 if there are none. Queries Ray and blocks."""
    own = ray.util.get_node_ip_address()
    alive = [(node["NodeManagerAddress"], node["Resources"].get(NPU, 0.0)) for node in ray.nodes() if node["Alive"]]
    here, everywhere = sum(npus for address, npus in alive if address == own), sum(npus for _, npus in alive)
    return float(here / everywhere) if here and everywhere else 1.0


def link_host() -> str:
    """Address on which this process listens for gateways: loopback when every node is on this machine."""
    addresses = {n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
    own = ray.util.get_node_ip_address()
    return LOOPBACK if addresses <= {own} else str(own)


# Nodes that Ray has declared dead. Processes that still report from them are isolated or about to end, and are
# ignored.
#
# A dead node never returns under the same id: its machine joins again as a new node.

POLL_PERIOD_S = 1.0
"""Shorter than the time in which Ray declares a node dead."""
ALONE_PERIOD_S = 5.0
"""While only the watcher's own node lives: another one must join before it can be lost."""


class LostNodeWatch:
    """Polls Ray on its own thread, because the call blocks while the control store is unavailable.

    Args:
        on_change: called on that thread with all dead nodes whenever one is added.
        listing: lists nodes; by default `ray.nodes`.
    """

    def __init__(
        self,
        on_change: Callable[[frozenset[NodeId]], None],
        listing: Callable[[], list[dict[str, Any]]] | None = None,
        period_s: float = POLL_PERIOD_S,
    ) -> None:
        self._on_change = on_change
        self._listing = listing or ray.nodes
        self._period_s = period_s
        self._known: frozenset[NodeId] = frozenset()
        self.pause_s = period_s
        """Time until the next poll [s]."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lost-nodes", daemon=True)

    def start(self) -> None:
        """Start watching, until `stop` or the end of the process."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Does not wait for a blocked call."""
        self._ends.set()

    def look(self) -> None:
        """Poll once. Raises: Ray's errors. Effects: calls `on_change` if a node was added."""
        listed = self._listing()
        lost = frozenset(NodeId(one["NodeID"]) for one in listed if not one["Alive"])
        self.pause_s = ALONE_PERIOD_S if len(listed) - len(lost) == 1 else self._period_s
        if lost - self._known:
            self._on_change(lost)
        self._known = lost

    def _watch(self) -> None:
        while not self._ends.wait(self.pause_s):
            try:
                self.look()
            except Exception as error:  # any error of Ray without its control store
                logger.debug("Ray does not list its nodes (%s)", type(error).__name__)
