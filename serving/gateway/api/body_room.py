"""How much of all request bodies together may be held while they arrive.

Each has a limit of its own, but there may be thousands at a time, each of which takes its time. A body that arrives at
once is not counted, so that ordinary requests pass however many others are under way.
"""

from collections import Counter

from serving.errors import OverloadedError

BODIES = 64
"""Of the largest size that may be under way; half of them for one key."""
RETRY_S = 1.0


class BodyRoom:
    """One gateway's.

    Args:
        largest: body that is allowed [bytes].
    """

    def __init__(self, largest: int) -> None:
        self._limit = BODIES * largest
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes of bodies under way."""
        return self._held.total()

    def take(self, key: str, size: int) -> None:
        """More of a body has arrived.

        Raises: OverloadedError; nothing is taken then.
        """
        if self.held + size > self._limit or self._held[key] + size > self._limit // 2:
            raise OverloadedError("too many large request bodies are under way", retry_after_s=RETRY_S)
        self._held[key] += size

    def give(self, key: str, size: int) -> None:
        """A body has arrived, or never will."""
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]
