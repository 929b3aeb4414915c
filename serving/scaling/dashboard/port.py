"""The page's port to the running system."""

from typing import Protocol, TypeAlias

from serving.values.scaling import Answer, PoolOperation

JsonObject: TypeAlias = dict[str, object]


class PoolsPort(Protocol):
    """Operations on the running system."""

    async def ask(self, operation: PoolOperation[Answer]) -> Answer:
        """Run an operation, within a deadline of the port.

        Raises: ScaleError with the reason of a refusal; `unavailable` if the system does not respond in time.
        """
        ...
