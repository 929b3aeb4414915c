"""Small values in Ray's control store (GCS), which outlive every actor, and the head's disk if the GCS is in a Redis.

    session, secrets, pool salt     `serving/cluster/identity.py`
    others                          each under a prefix of its own

The GCS may be unavailable for minutes. A call then fails at its deadline; at most one thread per store waits for it.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import ray

from serving.cluster.lookup import ActorLookup
from serving.errors import SilentError

T = TypeVar("T")

SPACE = b"cloudmatrix"
"""Namespace of the keys in the GCS."""
CALL_DEADLINE_S = 5.0
LARGEST_VALUE_BYTES = 4 << 20
"""The GCS stores every value in memory, and in its Redis."""


class KeyValues(Protocol):
    """The methods of Ray's GCS client that are used. Deadlines are in seconds."""

    def internal_kv_get(self, key: bytes, space: bytes, timeout: float, /) -> bytes | None: ...

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, space: bytes, timeout: float, /) -> int: ...

    def internal_kv_del(self, key: bytes, by_prefix: bool, space: bytes, timeout: float, /) -> int: ...

    def internal_kv_keys(self, prefix: bytes, space: bytes, timeout: float, /) -> list[bytes]: ...


class GcsStore:
    """Values by key, shared by all processes of a Ray cluster. Thread-safe; calls block.

    In an event loop: `await asyncio.to_thread(store.get, key)`.

    Args:
        client: returns the client; by default this process's, which must be connected to Ray.
        deadline_s: of each call.
    Raises: every call raises SilentError if the GCS does not respond in time.
    """

    def __init__(self, client: Callable[[], KeyValues] | None = None, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._client = client or _own_client
        self._deadline_s = deadline_s
        self._turn = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None."""
        return self._ask(lambda client: client.internal_kv_get(key.encode(), SPACE, self._deadline_s))

    def put(self, key: str, value: bytes) -> None:
        """Set a key. Raises: ValueError if the value is too large."""
        self._put(key, value, overwrite=True)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        """Set a key unless it exists. Returns: its present value. Raises: as `put`."""
        while True:
            if self._put(key, value, overwrite=False):
                return value
            there = self.get(key)
            if there is not None:  # None: deleted between the two calls
                return there

    def delete(self, key: str) -> bool:
        """Remove a key. Returns: whether it existed."""
        return self._ask(lambda client: client.internal_kv_del(key.encode(), False, SPACE, self._deadline_s)) > 0

    def keys(self, prefix: str = "") -> list[str]:
        """Keys with a prefix, sorted."""
        found = self._ask(lambda client: client.internal_kv_keys(prefix.encode(), SPACE, self._deadline_s))
        return sorted(key.decode() for key in found)

    def _put(self, key: str, value: bytes, *, overwrite: bool) -> bool:
        """Returns: whether the key was new."""
        if len(value) > LARGEST_VALUE_BYTES:
            raise ValueError(f"{key} has {len(value)} bytes; the control store takes {LARGEST_VALUE_BYTES}")
        return bool(
            self._ask(lambda client: client.internal_kv_put(key.encode(), value, overwrite, SPACE, self._deadline_s))
        )

    def _ask(self, question: Callable[[KeyValues], T]) -> T:
        """Call the GCS on a thread; a call that exceeds its deadline blocks later calls until it returns."""
        end = time.monotonic() + self._deadline_s
        if not self._turn.acquire(timeout=self._deadline_s):
            raise SilentError(_SILENT)

        def ask() -> T:
            try:
                return question(self._client())
            finally:
                self._turn.release()

        try:
            answer: T = ActorLookup(ask).wait(max(end - time.monotonic(), 0.0))
        except (TimeoutError, ray.exceptions.RpcError) as error:
            raise SilentError(_SILENT) from error
        return answer


_SILENT = "Ray's control store (GCS) does not answer; try again when it is back"


def _own_client() -> KeyValues:
    from ray._private.worker import global_worker  # where Ray keeps it; there is no public way to pass a deadline

    client: KeyValues = global_worker.gcs_client  # type: ignore[attr-defined]
    return client
