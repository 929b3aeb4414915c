"""Nodes that Ray has declared dead. Processes that still report from them are isolated or about to end, and are
ignored.

A dead node never returns under the same id: its machine joins again as a new node.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from serving.ids import NodeId

logger = logging.getLogger(__name__)

LOOK_PERIOD_S = 1.0
"""Shorter than the time in which Ray declares a node dead."""


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
        period_s: float = LOOK_PERIOD_S,
    ) -> None:
        self._on_change = on_change
        self._listing = listing or ray.nodes
        self._period_s = period_s
        self._known: frozenset[NodeId] = frozenset()
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
        lost = frozenset(NodeId(one["NodeID"]) for one in self._listing() if not one["Alive"])
        if lost - self._known:
            self._on_change(lost)
        self._known = lost

    def _watch(self) -> None:
        while not self._ends.wait(self._period_s):
            try:
                self.look()
            except Exception as error:  # any error of Ray without its control store
                logger.debug("Ray does not list its nodes (%s)", type(error).__name__)
