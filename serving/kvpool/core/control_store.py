"""Storage of the pool controller's state: a port with two implementations, memory and Redis.

The controller decides from its own memory and never waits for a store. It saves its whole state about once a second, so
a store that was unreachable, or lost its data, is correct again after the next save. It loads only at its start.
"""

from dataclasses import dataclass
from typing import Protocol

from serving.values.pool_view import NamespaceRecord, ServerRecord


@dataclass(frozen=True, slots=True)
class ControlState:
    """State that is kept.

    Args:
        session: the start of the system that wrote it.
        servers: as announced last, without facts.
        namespaces: with their quotas, by name.
    """

    session: str
    servers: tuple[ServerRecord, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()


class ControlStore(Protocol):
    """Where the state is kept."""

    def load(self) -> ControlState | None:
        """The saved state; None if there is none.

        Raises: PoolError if the store cannot be reached, or holds other data.
        """
        ...

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Keeps this state instead of any other.

        Args:
            ttl_s: servers that are not saved again within this time vanish from the store.
        Raises: PoolError if the store cannot be written now.
        """
        ...

    def close(self) -> None:
        """Ends the connection, if there is one."""
        ...


class EmbeddedStore:
    """Keeps the state in this process only: after its end the servers announce all of it again."""

    def __init__(self) -> None:
        self._state: ControlState | None = None

    def load(self) -> ControlState | None:
        """State that `save` was given last."""
        return self._state

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Keep the value in memory."""
        self._state = state

    def close(self) -> None:
        """Do nothing: there is no connection."""
