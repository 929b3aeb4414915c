"""Where responses are kept between requests: a port with two sides, this process's memory and a Redis."""

from collections.abc import Callable
from typing import Protocol

from serving.gateway.core.kept_responses import KeepLimits, KeptResponses


class ResponseStore(Protocol):
    """Responses by namespace and id, within limits."""

    limits: KeepLimits
    place: str
    """In words, for clients that ask for what is not there."""

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Keep a response.

        Returns: whether it is kept.
        Raises: UnavailableError if the store does not answer.
        """
        ...

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A response that is kept; None if it is not, or no longer.

        Raises: UnavailableError if the store does not answer.
        """
        ...

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Forget a response.

        Returns: whether it was kept.
        Raises: UnavailableError if the store does not answer.
        """
        ...


class MemoryResponseStore:
    """A `ResponseStore` of one gateway: another one knows nothing of it, and a restart forgets everything."""

    place = "in the memory of the gateway that answered"

    def __init__(self, limits: KeepLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._kept = KeptResponses(limits)
        self._clock = clock

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Keep a response. Returns: whether it is kept."""
        return self._kept.put(namespace, response_id, value, self._clock())

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A response that is kept; None if it is not, or no longer."""
        return self._kept.get(namespace, response_id, self._clock())

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Forget a response. Returns: whether it was kept."""
        return self._kept.delete(namespace, response_id, self._clock())
