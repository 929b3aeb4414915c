"""A controller that lives: with the clock, a lock, and a thread that keeps its state in a store.

Nobody who asks ever waits for the store. While it is away the pool is served from memory, one warning says so, and the
next save that succeeds puts the whole state back.
"""

import logging
import threading
import time
from collections.abc import Iterable

from serving.errors import PoolError
from serving.ids import NodeId
from serving.kvpool.core.control_store import ControlStore, EmbeddedStore
from serving.kvpool.core.controller import ControllerAnswer, ControlSettings, PoolController
from serving.values.pool_view import NamespaceRecord, PoolView, ServerRecord

logger = logging.getLogger(__name__)

SAVE_PERIOD_S = 1.0


class ControllerHost:
    """One controller of this process; safe for threads. `close` ends it.

    Args:
        store: where the state is kept; by default as `settings.directory` says.
    Raises: ConfigError if that is no address.
    Effects: a thread; asks the store once before it returns, with the store's own timeout.
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
        """A server is there. Effects: as `PoolController.announce`."""
        with self._lock:
            return self._controller.announce(record, namespaces, time.monotonic())

    def withdraw(self, name: str, incarnation: str) -> None:
        """A server says goodbye. Effects: as `PoolController.withdraw`."""
        with self._lock:
            self._controller.withdraw(name, incarnation, time.monotonic())

    def lose(self, nodes: frozenset[NodeId]) -> None:
        """The cluster has given these nodes up. Effects: as `PoolController.lose`."""
        with self._lock:
            self._controller.lose(nodes, time.monotonic())

    def view(self) -> PoolView | None:
        """The pool now; None while the controller is too young to know."""
        with self._lock:
            return self._controller.view(time.monotonic())

    def set_namespace(self, record: NamespaceRecord) -> None:
        """Adds a namespace or changes its quota.

        Raises: PoolError if it cannot be one. Effects: in the next view, and soon in the store.
        """
        with self._lock:
            self._controller.set_namespace(record)
        self._wake.set()

    def delete_namespace(self, name: str) -> bool:
        """Forgets a namespace. Returns: whether it was there. Effects: as `set_namespace`."""
        with self._lock:
            was_there = self._controller.delete_namespace(name)
        self._wake.set()
        return was_there

    def close(self) -> None:
        """Ends the thread; what is kept stays kept."""
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
                logger.warning("%s; the pool goes on from memory, and the directory is tried again", error)
            self._away = True
            return
        if self._away:
            logger.warning("the directory of the pool is there again, and up to date")
        self._away = False

    def _load(self) -> None:
        state = self._store.load()
        if state is not None:
            with self._lock:
                self._controller.restore(state, time.monotonic())
        self._loaded = True


def open_store(settings: ControlSettings) -> ControlStore:
    """The store that `[kvcache] directory` names.

    Raises: ConfigError if it is no address.
    Effects: none; nothing is connected yet.
    """
    if settings.directory == "embedded":
        return EmbeddedStore()
    from serving.kvpool.live.redis_store import RedisStore  # its import costs 0.2 s

    return RedisStore(settings.directory, settings.session)
