"""Stores of responses between requests: a port with two implementations, this process's memory and a Redis."""

from collections.abc import Callable
from typing import Protocol

from serving.gateway.core.kept_responses import KeepLimits, KeptResponses


class ResponseStore(Protocol):
    """Responses by namespace and id, within limits."""

    limits: KeepLimits
    place: str
    """Description for clients that request a response which is not stored."""

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Store a response.

        Returns: whether it was stored.
        Raises: UnavailableError if the store does not respond.
        """
        ...

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored.

        Raises: UnavailableError if the store does not respond.
        """
        ...

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Delete a response.

        Returns: whether it was stored.
        Raises: UnavailableError if the store does not respond.
        """
        ...


class MemoryResponseStore:
    """A `ResponseStore` of one gateway; other gateways cannot read it, and a restart empties it."""

    place = "in the memory of the gateway that created them"

    def __init__(self, limits: KeepLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._kept = KeptResponses(limits)
        self._clock = clock

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Store a response. Returns: whether it was stored."""
        return self._kept.put(namespace, response_id, value, self._clock())

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored."""
        return self._kept.get(namespace, response_id, self._clock())

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Delete a response. Returns: whether it was stored."""
        return self._kept.delete(namespace, response_id, self._clock())
