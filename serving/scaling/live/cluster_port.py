"""Interface of the scaling board to the cluster."""

import time
from collections.abc import Sequence
from typing import Protocol

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.values.group import OperatorOrder, OrderAnswer, SizeOrder


class ClusterPort(Protocol):
    """The board's interface to the cluster. Every call has its own deadline."""

    async def poll(self, before: ClusterSnapshot) -> ClusterSnapshot:
        """Snapshot of the cluster now; parts that do not respond are taken from `before`.

        Raises: ClusterSilentError if Serve's controller or Ray itself does not respond.
        """
        ...

    async def set_target(self, pool: str, replicas: int, leaving: Sequence[str] = ()) -> None:
        """Set a pool's target through Serve's scale API.

        Args:
            leaving: replicas to remove if the pool shrinks, by Serve's names; Serve selects further ones, and all of
                them if it does not support a selection.
        Raises: ClusterSilentError.
        """
        ...

    async def order(self, actor: str, order: OperatorOrder | SizeOrder) -> OrderAnswer:
        """Send a command to the group of a rank, given the name of the rank's actor.

        Raises: UnavailableError.
        """
        ...


class ClusterSilentError(Exception):
    """Serve's controller or Ray itself does not respond."""


# Seconds since 1970 without jumps: the time at the start of this process plus the monotonic clock.

_BEGAN = time.time() - time.monotonic()


def steady_s() -> float:
    """Now [s since 1970]. It differs from `time.time()` after the node has slept or its clock was set."""
    return _BEGAN + time.monotonic()
