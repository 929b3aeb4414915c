"""Responses that are kept for a while, so that clients can ask for them and go on with them: bounded per namespace.

The oldest go first. One namespace never pushes out what another keeps.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """How much is kept of each namespace.

    Args:
        responses: so many; 0 = none are kept.
        size_bytes: of all of them together.
        seconds: each, from when it was kept.
    """

    responses: int = 1000
    size_bytes: int = 64 << 20
    seconds: float = 86_400.0

    def takes(self, size: int) -> bool:
        """Whether a response of this size [bytes] can be kept at all."""
        return self.responses > 0 and size <= self.size_bytes


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One response that is kept.

    Args:
        at: when it was kept [s].
        size: bytes.
    """

    response_id: str
    at: float
    size: int


def overdue(entries: Iterable[KeptEntry], limits: KeepLimits, now: float) -> list[str]:
    """Ids of one namespace that must go: the expired, and the oldest until the rest is within the limits."""
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
        """Keep a response, in place of one with the same id.

        Returns: whether it is kept.
        """
        if not self._limits.takes(len(value)):
            return False
        own = self._kept.setdefault(namespace, {})
        own[response_id] = KeptEntry(response_id, now, len(value)), value
        for gone in overdue([entry for entry, _ in own.values()], self._limits, now):
            del own[gone]
        return response_id in own

    def get(self, namespace: str, response_id: str, now: float) -> bytes | None:
        """A response that is kept; None if it is not, or no longer."""
        found = self._kept.get(namespace, {}).get(response_id)
        if found is None:
            return None
        entry, value = found
        if entry.at + self._limits.seconds <= now:
            self._remove(namespace, response_id)
            return None
        return value

    def delete(self, namespace: str, response_id: str, now: float) -> bool:
        """Forget a response. Returns: whether it was kept."""
        if self.get(namespace, response_id, now) is None:
            return False
        self._remove(namespace, response_id)
        return True

    def check(self) -> None:
        """Raises: AssertionError if more is kept than the limits allow."""
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
