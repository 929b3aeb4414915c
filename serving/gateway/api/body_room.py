"""Limit on the bytes of all request bodies together while they arrive.

Each body has a limit of its own, but thousands may arrive slowly at the same time. A body that arrives in one piece is
not counted, so ordinary requests pass however many others are in flight.
"""

from collections import Counter

from serving.errors import OverloadedError

BODIES = 64
"""Bodies of the largest size that may be in flight; half of them for one key."""
RETRY_S = 1.0


class BodyRoom:
    """Budget of one gateway.

    Args:
        largest: largest body allowed [bytes].
    """

    def __init__(self, largest: int) -> None:
        self._limit = BODIES * largest
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes of bodies in flight."""
        return self._held.total()

    def take(self, key: str, size: int) -> None:
        """Reserve bytes of a body that have arrived.

        Raises: OverloadedError; nothing is reserved then.
        """
        if self.held + size > self._limit or self._held[key] + size > self._limit // 2:
            raise OverloadedError("too many large request bodies are in progress", retry_after_s=RETRY_S)
        self._held[key] += size

    def give(self, key: str, size: int) -> None:
        """Release the bytes reserved for a body."""
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]
