"""Small values that must survive a process and the head's disk: stored in Ray's control store, written asynchronously.

Setting a value returns immediately; a thread writes the latest value of each key to the store, and retries while the
store is unavailable. A store is up to date one second after it recovers.
"""

import logging
import threading
from typing import Protocol

from serving.errors import SilentError

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
