"""A running controller: with a clock, a lock, and a thread that saves its state in a store.

No caller waits for the store. While it is unreachable the pool is served from memory and one warning is logged; the
next save that succeeds restores the whole state there.
"""

import logging
import math
import threading
import time
from collections.abc import Iterable

from serving.errors import PoolError
from serving.ids import NodeId
from serving.kvpool.core.controller import (
    ControllerAnswer,
    ControlSettings,
    ControlStore,
    EmbeddedStore,
    PoolController,
)
from serving.values.pool_view import NamespaceRecord, PoolView, ServerRecord

logger = logging.getLogger(__name__)

SAVE_PERIOD_S = 1.0
UNKNOWN_S = 0.25
"""How often to ask a controller that does not know the pool yet."""


class ControllerHost:
    """One controller of this process; thread-safe. `close` ends it.

    The constructor loads from the store once, with the store's own timeout, and starts a thread.

    Args:
        store: keeps the state; None = the store that `settings.directory` names.
    Raises: ConfigError if that is not a valid address.
    """

    def __init__(
        self, settings: ControlSettings, store: ControlStore | None = None, save_period_s: float = SAVE_PERIOD_S
    ) -> None:
        self._store = store or open_store(settings)
        self._expiry_s = settings.expiry_s
        self._period_s = save_period_s
        self._lock = threading.Lock()
        self._controller = PoolController(settings)
        self._loaded = False
        self._away = False
        self._wake = threading.Event()
        self._closing = False
        self._keep_once()
        self._thread = threading.Thread(target=self._keep_forever, name="kvpool-controller", daemon=True)
        self._thread.start()

    def announce(self, record: ServerRecord, namespaces: Iterable[NamespaceRecord]) -> ControllerAnswer:
        """See `PoolController.announce`."""
        with self._lock:
            return self._controller.announce(record, namespaces, time.monotonic())

    def withdraw(self, name: str, incarnation: str) -> None:
        """See `PoolController.withdraw`."""
        with self._lock:
            self._controller.withdraw(name, incarnation, time.monotonic())

    def lose(self, nodes: frozenset[NodeId]) -> None:
        """See `PoolController.lose`."""
        with self._lock:
            self._controller.lose(nodes, time.monotonic())

    def view(self) -> PoolView | None:
        """The pool now; None while the controller is too young to know."""
        with self._lock:
            return self._controller.view(time.monotonic())

    def lasts_s(self) -> float:
        """How long the view stays as it is unless something is announced [s]; `UNKNOWN_S` while there is none."""
        with self._lock:
            now = time.monotonic()
            view = self._controller.view(now)
            if view is None:
                return UNKNOWN_S
            change = self._controller.next_change([one.record.name for one in view.servers], now)
        return math.inf if change is None else change - now

    def set_namespace(self, record: NamespaceRecord) -> None:
        """Add a namespace or change its quota, in the next view and soon in the store.

        Raises: PoolError if its name, quota or weight is invalid.
        """
        with self._lock:
            self._controller.set_namespace(record)
        self._wake.set()

    def delete_namespace(self, name: str) -> bool:
        """Remove a namespace, in the next view and soon in the store. Returns: whether it existed."""
        with self._lock:
            was_there = self._controller.delete_namespace(name)
        self._wake.set()
        return was_there

    def close(self) -> None:
        """End the thread and close the store; stored records remain."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._store.close()

    def _keep_forever(self) -> None:
        while not self._closing:
            self._wake.wait(self._period_s)
            self._wake.clear()
            self._keep_once()

    def _keep_once(self) -> None:
        try:
            if not self._loaded:  # before the first save: it must not overwrite what is to be loaded
                self._load()
            with self._lock:
                state = self._controller.state(time.monotonic())
            self._store.save(state, self._expiry_s)
        except PoolError as error:
            if not self._away:
                logger.warning("%s; the pool continues from memory and retries the directory", error)
            self._away = True
            return
        if self._away:
            logger.warning("the directory of the pool is available again and up to date")
        self._away = False

    def _load(self) -> None:
        state = self._store.load()
        if state is not None:
            with self._lock:
                self._controller.restore(state, time.monotonic())
        self._loaded = True


def open_store(settings: ControlSettings) -> ControlStore:
    """The store that `[kvcache] directory` names, not connected yet.

    Raises: ConfigError if it is not a valid address.
    """
    if settings.directory == "embedded":
        return EmbeddedStore()
    from serving.kvpool.live.redis_store import RedisStore  # its import costs 0.2 s

    return RedisStore(settings.directory, settings.session)
