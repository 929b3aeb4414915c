"""The page's port to the running system."""

from typing import Protocol, TypeAlias

from serving.values.scaling import Answer, PoolOperation

JsonObject: TypeAlias = dict[str, object]


class PoolsPort(Protocol):
    """The running system."""

    async def ask(self, operation: PoolOperation[Answer]) -> Answer:
        """Have one operation done; ends within a deadline of the port's.

        Raises: ScaleError: what the operation is refused with; `unavailable` when nobody answers in time.
        """
        ...
