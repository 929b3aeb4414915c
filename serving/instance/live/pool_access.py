"""Access of one instance to the KV-cache pool: created once, from the configuration and the view of the pool."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.config.kvcache import KvCacheConfig
from serving.ids import NodeId, ReplicaId
from serving.instance.live.pool_worker import FETCHES_AT_ONCE
from serving.kvpool.live.client import PoolClient
from serving.kvpool.live.context_cache import ArenaMirror, PoolContextCache
from serving.kvpool.live.model_cache import ModelCache
from serving.kvpool.live.segments import Segments
from serving.sockets.secrets import ClusterSecrets
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
