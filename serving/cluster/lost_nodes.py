"""Nodes that Ray has given up. What still says that it runs there is cut off, or about to end: it counts no more.

A node that Ray has given up never comes back under the same id: its machine joins again as a new one.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from serving.ids import NodeId

logger = logging.getLogger(__name__)

LOOK_PERIOD_S = 1.0
"""Ray takes longer than that to give a node up."""


class LostNodeWatch:
    """Asks Ray again and again, on a thread of its own: while the control store is away the question hangs.

    Args:
        on_change: gets the nodes whenever there are more of them, on that thread.
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
        """Watch from now on, until `stop` or the end of the process."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. Does not wait for a question that hangs."""
        self._ends.set()

    def look(self) -> None:
        """Ask once. Raises: what Ray raises. Effects: `on_change` is called if there is news."""
        lost = frozenset(NodeId(one["NodeID"]) for one in self._listing() if not one["Alive"])
        if lost - self._known:
            self._on_change(lost)
        self._known = lost

    def _watch(self) -> None:
        while not self._ends.wait(self._period_s):
            try:
                self.look()
            except Exception as error:  # whatever Ray raises while its control store is away
                logger.debug("Ray does not list its nodes (%s)", type(error).__name__)
