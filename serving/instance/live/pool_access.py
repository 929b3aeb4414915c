"""Access of one instance to the KV-cache pool: created once, from the configuration and the view of the pool."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from serving.config.kvcache import KvCacheConfig
from serving.ids import NodeId, ReplicaId
from serving.instance.core.events import FetchDone, FetchOrder, StoreDone, StoreOrder
from serving.instance.core.ports import ContextCache
from serving.instance.live.engine_news import Post
from serving.instance.live.kv_moves import WorkThreads
from serving.kvpool.live.context_cache import ArenaMirror, PoolContextCache
from serving.kvpool.live.model_cache import ModelCache
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.segments import Segments
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_outcome import FetchReport, MissReason
from serving.values.pool_view import PoolView


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """Access to the KV-cache pool.

    Args:
        view: returns the latest view; called from several threads.
        secret: shared with the memory servers.
    """

    view: Callable[[], PoolView]
    secret: str | ClusterSecrets
    config: KvCacheConfig

    def context_cache(
        self,
        replica: ReplicaId,
        node: NodeId,
        layout: str,
        arena: memoryview,
        block_bytes: int,
        mirror: ArenaMirror | None,
    ) -> PoolContextCache:
        """The pool's cache for one instance, which fetches and stores KV blocks.

        Effects: connects to the current servers.
        """
        config, segments = self.config, Segments()
        *fetchers, storer = (
            PoolClient(f"{replica}/{what}", node, self.secret, self.view, config.scope, config.lease_s, segments)
            for what in (*(f"fetch-{number}" for number in range(FETCHES_AT_ONCE)), "store")
        )
        cache = PoolContextCache(
            fetchers,
            storer,
            layout=layout,
            arena=arena,
            block_bytes=block_bytes,
            get_timeout_s=config.get_timeout_s,
            put_timeout_s=config.put_timeout_s,
            mirror=mirror,
        )
        cache.warm()
        return cache

    def model_cache(self, replica: ReplicaId, node: NodeId) -> ModelCache | None:
        """The pool's store of model weights; None if it keeps none."""
        if not self.config.models:
            return None
        return ModelCache(f"{replica}/weights", node, self.secret, self.view, self.config.scope)


# Executes an engine's commands to the KV-cache pool, on separate threads, so that no step waits for them.
#
# Fetches and stores have different threads, since a token may depend on a fetch but never on a store. Several fetches
# run concurrently, so that one that waits for a slow disk delays no other prompt. Waiting stores are combined into one
# batch; the engine, which pins their blocks, bounds their number.

logger = logging.getLogger(__name__)

BATCH_BLOCKS = 64
"""Blocks per batch of stores: enough to make the two round trips cheap, few enough to unpin them soon."""
FETCHES_AT_ONCE = 4
"""More than prefill looks ahead in prompts of usual length; each has separate connections to every server."""


class PoolWorker:
    """The threads between one engine and its `ContextCache`.

    Args:
        post: passes an event to the engine's thread.
    """

    def __init__(self, cache: ContextCache, post: Post, name: str) -> None:
        self._cache = cache
        self._post = post
        self._fetcher = WorkThreads(FETCHES_AT_ONCE, f"{name}-fetch")
        self._waiting: deque[StoreOrder] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._storer = threading.Thread(target=self._store_forever, name=f"{name}-store", daemon=True)
        self._storer.start()

    def take(self, order: FetchOrder | StoreOrder) -> None:
        """Start a fetch or queue a store; posts `FetchDone` or `StoreDone` to the engine with any outcome."""
        if isinstance(order, FetchOrder):
            self._fetcher.submit(self._fetch, order)
            return
        self._waiting.append(order)
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """End the threads after their current work, waiting until the timeout [s]; queued stores are dropped."""
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        self._wake.set()
        self._fetcher.stop(timeout_s)
        self._storer.join(max(0.0, deadline - time.monotonic()))

    def _fetch(self, order: FetchOrder) -> None:
        try:
            report = self._cache.fetch(order.namespace, order.hashes, order.blocks, order.rows)
        except Exception:
            logger.exception("fetch for %s failed unexpectedly; its prompt is computed", order.sequence_id)
            report = FetchReport(0, lost_blocks=len(order.blocks), reason=MissReason.ERROR)
        self._post(FetchDone(order.sequence_id, report))

    def _store_forever(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._stopping:
                self._store(self._next_batch())

    def _next_batch(self) -> list[StoreOrder]:
        """Waiting orders of one namespace, oldest first, up to `BATCH_BLOCKS` blocks (at least one order)."""
        batch = [self._waiting.popleft()]
        blocks = len(batch[0].blocks)
        while self._waiting and self._waiting[0].namespace == batch[0].namespace:
            blocks += len(self._waiting[0].blocks)
            if blocks > BATCH_BLOCKS:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _store(self, batch: list[StoreOrder]) -> None:
        hashes = [prefix_hash for order in batch for prefix_hash in order.hashes]
        blocks = [block for order in batch for block in order.blocks]
        try:
            if hashes:
                self._cache.store(batch[0].namespace, hashes, blocks)
        except Exception:
            logger.exception("storing %d blocks failed unexpectedly; they are dropped", len(blocks))
        claims = [order.claim for order in batch if order.claim is not None]
        if claims:
            self._cache.claim(batch[0].namespace, claims)
        for order in batch:
            self._post(StoreDone(order.order_id))
