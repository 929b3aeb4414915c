"""Responses stored for a limited time, so that clients can request and continue them: bounded per namespace.

The oldest are dropped first. A namespace never displaces another's responses.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """Limits of each namespace.

    Args:
        responses: number of responses; 0 = none are stored.
        size_bytes: of all together.
        seconds: lifetime of each.
    """

    responses: int = 1000
    size_bytes: int = 64 << 20
    seconds: float = 86_400.0

    def takes(self, size: int) -> bool:
        """Whether a response of this size [bytes] can be stored at all."""
        return self.responses > 0 and size <= self.size_bytes


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One stored response.

    Args:
        at: when it was stored [s].
        size: bytes.
    """

    response_id: str
    at: float
    size: int


def overdue(entries: Iterable[KeptEntry], limits: KeepLimits, now: float) -> list[str]:
    """Ids in one namespace to delete: the expired, and the oldest until the rest is within the limits."""
    newest = sorted(entries, key=lambda entry: (entry.at, entry.response_id), reverse=True)
    gone, size = [], 0
    for count, entry in enumerate(newest, 1):
        size += entry.size
        if count > limits.responses or size > limits.size_bytes or entry.at + limits.seconds <= now:
            gone.append(entry.response_id)
    return gone


class KeptResponses:
    """Responses in the memory of one process."""

    def __init__(self, limits: KeepLimits) -> None:
        self._limits = limits
        self._kept: dict[str, dict[str, tuple[KeptEntry, bytes]]] = {}
        """By namespace and id."""

    def put(self, namespace: str, response_id: str, value: bytes, now: float) -> bool:
        """Store a response, replacing one with the same id.

        Returns: whether it was stored.
        """
        if not self._limits.takes(len(value)):
            return False
        own = self._kept.setdefault(namespace, {})
        own[response_id] = KeptEntry(response_id, now, len(value)), value
        for gone in overdue([entry for entry, _ in own.values()], self._limits, now):
            del own[gone]
        return response_id in own

    def get(self, namespace: str, response_id: str, now: float) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored."""
        found = self._kept.get(namespace, {}).get(response_id)
        if found is None:
            return None
        entry, value = found
        if entry.at + self._limits.seconds <= now:
            self._remove(namespace, response_id)
            return None
        return value

    def delete(self, namespace: str, response_id: str, now: float) -> bool:
        """Delete a response. Returns: whether it was stored."""
        if self.get(namespace, response_id, now) is None:
            return False
        self._remove(namespace, response_id)
        return True

    def check(self) -> None:
        """Raises: AssertionError if the limits are exceeded."""
        for own in self._kept.values():
            assert own, "an empty namespace is not remembered"
            assert len(own) <= self._limits.responses, "too many"
            assert sum(entry.size for entry, _ in own.values()) <= self._limits.size_bytes, "too large"
            assert all(entry.size == len(value) for entry, value in own.values()), "sizes are those of the values"

    def _remove(self, namespace: str, response_id: str) -> None:
        own = self._kept[namespace]
        del own[response_id]
        if not own:
            del self._kept[namespace]
