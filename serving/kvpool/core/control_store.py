"""Storage of the pool's controller outside itself: a port with two sides, memory and Redis.

The controller decides from its own memory and never waits for a store. It saves its whole state about once a second, so
that a store that was away, or came back empty, is right again with the next save; it loads only when it starts.
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
        """State that was kept; None if nothing was.

        Raises: PoolError if the store cannot be asked now, or holds something else.
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
    """Keeps the state in this process and nowhere else: after its death the servers announce all of it anew."""

    def __init__(self) -> None:
        self._state: ControlState | None = None

    def load(self) -> ControlState | None:
        """State that `save` was given last."""
        return self._state

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Keeps the value. Effects: none but that."""
        self._state = state

    def close(self) -> None:
        """Nothing is open."""
