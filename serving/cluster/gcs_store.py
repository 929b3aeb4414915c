"""Small values in Ray's control store (GCS), which outlive every actor, and the head's disk if the GCS is in a Redis.

    session, secrets, pool salt     `serving/cluster/identity.py`
    others                          each under a prefix of its own

The GCS may be unavailable for minutes. A call then fails at its deadline; at most one thread per store waits for it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import ray

from serving.deadline import within
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


# Calls to Ray's control store (GCS), which block indefinitely while it is unavailable.
#
# Each call runs on its own daemon thread; callers wait until their deadline only, and process exit does not wait.


class ActorLookup:
    """Finds an actor, or makes another call that Ray may not respond to, without blocking the event loop.

    Concurrent callers share one pending call, so at most one thread is used.

    Args:
        find: finds or makes the actor; may block.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._asked: Future[Any] | None = None

    async def answer(self, deadline_s: float) -> Any:
        """Response for event loops. Raises: TimeoutError if there is none in time, and as `find`."""
        return await within(asyncio.wrap_future(self._question()), deadline_s)

    def wait(self, deadline_s: float) -> Any:
        """Response for threads. Raises: as `answer`."""
        return self._question().result(deadline_s)

    def _question(self) -> Future[Any]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                self._asked.set_running_or_notify_cancel()  # one caller cannot cancel it for the others
                threading.Thread(target=self._ask, args=(self._asked,), name="ray-lookup", daemon=True).start()
            return self._asked

    def _ask(self, asked: Future[Any]) -> None:
        try:
            found = self._find()
        except BaseException as error:
            asked.set_exception(error)
        else:
            asked.set_result(found)


# Small values that must survive a process and the head's disk: stored in Ray's control store, written asynchronously.
#
# Setting a value returns immediately; a thread writes the latest value of each key to the store, and retries while the
# store is unavailable. A store is up to date one second after it recovers.

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0


class ValueStore(Protocol):
    """The methods of `GcsStore` that are used."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def delete(self, key: str) -> bool: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class KeptValues:
    """Values under one prefix. For one process only; two that write the same keys would overwrite each other.

    Args:
        store: None = memory only.
        prefix: of the keys in the store.
    Raises: SilentError if the store does not respond to the initial read.
    Effects: reads all values under the prefix; starts a thread at the first change.
    """

    def __init__(self, store: ValueStore | None = None, prefix: str = "", retry_s: float = RETRY_PAUSE_S) -> None:
        self._store = store
        self._prefix = prefix
        self._retry_s = retry_s
        self._lock = threading.Condition()
        self._changed: set[str] = set()
        self._writer: threading.Thread | None = None
        self._values: dict[str, bytes] = {}
        for key in store.keys(prefix) if store is not None else ():
            value = store.get(key) if store is not None else None
            if value is not None:
                self._values[key.removeprefix(prefix)] = value

    def get(self, key: str) -> bytes | None:
        """Latest value of a key, including one not yet stored."""
        return self._values.get(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Keys with a prefix, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def set(self, key: str, value: bytes | None) -> None:
        """Set a key, or remove it with None. Effects: the store is updated soon."""
        with self._lock:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            if self._store is None:
                return
            self._changed.add(key)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_forever, name="kept-values", daemon=True)
                self._writer.start()
            self._lock.notify_all()

    def settled(self, deadline_s: float) -> bool:
        """Wait until all values are stored. Returns: whether that was in time."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._changed, deadline_s)

    def _write_forever(self) -> None:
        assert self._store is not None
        away = False
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._changed)
                key = min(self._changed)
                value = self._values.get(key)
            try:
                if value is None:
                    self._store.delete(self._prefix + key)
                else:
                    self._store.put(self._prefix + key, value)
            except SilentError as error:
                if not away:
                    logger.warning("%s; values are written when it is available again", error)
                away = True
                threading.Event().wait(self._retry_s)
                continue
            except ValueError as error:  # too large: a later value may be smaller
                logger.warning("%s", error)
            away = False
            with self._lock:
                if self._values.get(key) == value:
                    self._changed.discard(key)
                self._lock.notify_all()
