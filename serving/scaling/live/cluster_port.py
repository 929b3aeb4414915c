"""The cluster, as the scaling board needs it."""

import time
from collections.abc import Sequence
from typing import Protocol

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.values.group import OperatorOrder, OrderAnswer, SizeOrder


class ClusterPort(Protocol):
    """The cluster, as far as the board needs it. Every call has a deadline of its own."""

    async def look(self, before: ClusterSnapshot) -> ClusterSnapshot:
        """Snapshot of the cluster now; parts that do not answer are taken from `before`.

        Raises: ClusterSilentError when Serve's controller or Ray itself does not answer.
        """
        ...

    async def set_target(self, pool: str, replicas: int, leaving: Sequence[str] = ()) -> None:
        """Serve's scale API.

        Args:
            leaving: replicas that leave, by Serve's names of them, if the pool becomes smaller; Serve chooses further
                ones, and all where it cannot be told.
        Raises: ClusterSilentError.
        """
        ...

    async def order(self, actor: str, order: OperatorOrder | SizeOrder) -> OrderAnswer:
        """Give an order to the group that a rank belongs to, by name of the rank's actor.

        Raises: UnavailableError.
        """
        ...


class ClusterSilentError(Exception):
    """Serve's controller or Ray itself does not answer."""


# Seconds since 1970 that never jump: time as this process began with it, however the machine's clock is set later.

_BEGAN = time.time() - time.monotonic()


def steady_s() -> float:
    """Now [s since 1970]. A machine that sleeps, or whose clock is set, makes it differ from `time.time()`."""
    return _BEGAN + time.monotonic()
