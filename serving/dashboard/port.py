"""What the page needs of the running system."""

from typing import Protocol, TypeAlias

JsonObject: TypeAlias = dict[str, object]


class PoolsPort(Protocol):
    """The running system. Every call ends within a deadline of the port's.

    `by` names who asks, for the ledger: `page`, `cli` or `rest`.

    Raises: all: ScaleError, of kind `unavailable` when nobody answers in time.
    """

    async def state(self) -> JsonObject:
        """Everything that the page shows."""
        ...

    async def scale(self, pool: str, replicas: int, hold_s: float | None, by: str) -> JsonObject:
        """Give a pool a new target, which then stands against the autoscaler.

        Args:
            hold_s: for how long [s]; None = as configured, 0 = not at all.
        """
        ...

    async def hold(self, pool: str, hold_s: float | None, by: str) -> JsonObject:
        """Keep the pool's target as it is.

        Args:
            hold_s: for how long [s]; None = as configured.
        """
        ...

    async def release(self, pool: str, by: str) -> JsonObject:
        """Give the pool back to the autoscaler."""
        ...

    async def decisions(self, pool: str | None, after: int, limit: int) -> list[JsonObject]:
        """What was decided lately, newest first.

        Args:
            pool: only this one's; None = all.
            after: only entries with a larger id.
            limit: at most so many.
        """
        ...
