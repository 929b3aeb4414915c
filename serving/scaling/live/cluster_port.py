"""The cluster, as the scaling board needs it."""

from typing import Protocol

from serving.scaling.live.sight import Sight
from serving.values.operator_order import OperatorOrder, OrderAnswer, SizeOrder


class ClusterPort(Protocol):
    """The cluster, as far as the board needs it. Every call has a deadline of its own."""

    async def look(self, before: Sight) -> Sight:
        """Snapshot of the cluster now; parts that do not answer are taken from `before`.

        Raises: ClusterSilentError when Serve's controller or Ray itself does not answer.
        """
        ...

    async def set_target(self, pool: str, replicas: int) -> None:
        """Serve's scale API.

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
