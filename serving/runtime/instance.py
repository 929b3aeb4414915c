"""One instance, assembled: virtual NPUs, KV arena in its UB segment, model, engine thread, link server.

Knows no Ray: a Serve replica passes in which NPUs and which node it was given, a test passes its own.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardware.clock import WallClock
from hardware.device.instance import WEIGHTS, WORKSPACE, VirtualInstance
from hardware.device.npu import VirtualNpu
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.plane import Plane
from hardware.topology import NpuId
from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from hardware.units import MIB
from serving.config.pool import PoolConfig
from serving.config.serve import ServeConfig
from serving.engine.engine import InstanceEngine
from serving.engine.settings import EngineRole, EngineSettings
from serving.engine.torch_executor import TorchExecutor
from serving.errors import ConfigError
from serving.ids import NodeId, ReplicaId
from serving.kvpool.context_cache import PoolContextCache
from serving.link.messages import Welcome
from serving.model.image import model_version
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.model import DeepseekModel
from serving.model.size import weight_bytes
from serving.policy.pool.view import PoolView
from serving.runtime.allocator import keep_freed_memory, return_freed_memory
from serving.runtime.device_mirror import DeviceMirror
from serving.runtime.engine_loop import EngineLoop
from serving.runtime.instance_server import InstanceServer
from serving.runtime.pool_access import PoolAccess
from serving.runtime.ub_transport import RemoteReader, UbTransport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Where an instance was put, and as whom."""

    replica: ReplicaId
    pool: str
    node: NodeId
    npus: tuple[NpuId, ...]
    segment_path: Path
    """Where this instance makes its UB segment; nobody else's."""
    link_host: str
    threads: int


class Instance:
    """Everything that one replica runs. Build it, `await start()`, and `await stop()` in the end."""

    def __init__(
        self,
        config: ServeConfig,
        place: InstancePlace,
        secret: str,
        read_remote: RemoteReader | None = None,
        pool_view: Callable[[], PoolView] | None = None,
    ) -> None:
        """Load the model and take memory; slow.

        Args:
            secret: shared by gateways, instances and memory servers.
            pool_view: gives the newest view of the KV-cache pool; None = there is no pool.

        Raises: ModelError, ConfigError, HardwareError (no room in HBM or in the UB segment).
        Effects: makes the instance's UB segment. Sets torch's threads and the allocator's habits for the whole process.
        """
        torch.set_num_threads(place.threads)
        keep_freed_memory()
        self.place = place
        self._clock = WallClock()
        self.npus = virtual_npus(config, place, self._clock)
        access = PoolAccess(pool_view, secret, config.kvcache) if pool_view is not None else None
        model = _load(config, place, access)
        blocks, block_bytes = _take_memory(self.npus, model, config, config.pools[place.pool])
        self._segment = UbSegment.create(place.segment_path, blocks * block_bytes, max_regions=1)
        self._region: UbRegion = self._segment.allocate(blocks * block_bytes, owner=place.replica)
        arena = self._segment.view(self._region)
        cache, mirror = _kv_cache(model, blocks, config.engine.block_tokens, arena)
        self.settings = _engine_settings(config, place, model.config.max_position_embeddings, blocks)
        self._transport = UbTransport(
            replica=place.replica,
            node=place.node,
            segment=self._segment,
            arena=arena,
            arena_offset=self._region.offset,
            generation=self._region.generation,
            block_bytes=block_bytes,
            layout=cache.layout_fingerprint,
            read_remote=read_remote,
            mirror=mirror,
            on_moved=partial(self.npus.record_moved, Plane.RDMA),
        )
        self.engine = InstanceEngine(self.settings, blocks)
        self.server = InstanceServer(self._welcome(cache), secret)
        self.pool_cache: PoolContextCache | None = None
        if access is not None and self.settings.pool:
            layout = f"{cache.layout_fingerprint}-{config.model.version or model_version(config.model.path)}"
            self.pool_cache = access.context_cache(place.replica, place.node, layout, arena, block_bytes, mirror)
        self.loop = EngineLoop(
            self.engine,
            TorchExecutor(model, cache),
            self._transport,
            self._clock,
            self.server.deliver,
            place.replica,
            on_step=self.npus.record_step,
            cache=self.pool_cache,
        )
        self.block_bytes = block_bytes

    async def start(self) -> tuple[str, int]:
        """Start the engine thread and the link server. Returns: the address that gateways connect to."""
        address = await self.server.start(self.loop, self.place.link_host)
        self.loop.start()
        return address

    async def stop(self) -> None:
        """Stop everything and give the memory back. Sequences still here are lost."""
        await self.server.stop()
        self.loop.stop()
        if self.pool_cache is not None:
            self.pool_cache.close()
        self._transport.close()
        self._segment.release(self._region)
        self._segment.remove()

    def facts(self) -> dict[str, Any]:
        """What status pages and metrics show of this instance: plain numbers and strings."""
        snapshot = self.loop.snapshot
        return {
            "npus": [str(npu.id) for npu in self.npus.npus],
            "hbm_used_bytes": self.npus.used_bytes,
            "hbm_capacity_bytes": self.npus.capacity_bytes,
            "ub_bytes": self._region.nbytes,
            "kv_block_bytes": self.block_bytes,
            "block_tokens": self.settings.block_tokens,
            "draining": self.server.draining,
            "progress_age_s": min(self.loop.progress_age_s(), 1e9),
            "open_sequences": self.server.open_sequences,
            "busy_s": self.loop.busy_s,
            "pull_seconds_total": self.loop.pull_seconds,
            "handoff_failures_total": self.loop.pull_failures,
            "pool": self.pool_cache.facts() if self.pool_cache is not None else None,
            **{name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__},
        }

    def _welcome(self, cache: KvCache) -> Welcome:
        return Welcome(
            replica=self.place.replica,
            pool=self.place.pool,
            node=self.place.node,
            layout=cache.layout_fingerprint,
            block_tokens=self.settings.block_tokens,
            kv_blocks=cache.num_blocks,
            max_model_len=self.settings.max_model_len,
        )


def virtual_npus(config: ServeConfig, place: InstancePlace, clock: WallClock) -> VirtualInstance:
    """The instance's NPUs, scaled down as `[hardware]` says."""
    spec = CLOUDMATRIX_NODE.npu.with_hbm_per_die(config.hardware.hbm_per_die_bytes)
    return VirtualInstance(place.replica, [VirtualNpu(npu, spec, clock) for npu in place.npus])


def _take_memory(npus: VirtualInstance, model: DeepseekModel, config: ServeConfig, pool: PoolConfig) -> tuple[int, int]:
    """Book weights, workspace and KV blocks on the instance's dies. Returns: (blocks, bytes of one block)."""
    npus.reserve_spread(WEIGHTS, weight_bytes(config.model.path, model.dtype))
    die_bytes = config.hardware.hbm_per_die_bytes
    npus.reserve_per_die(WORKSPACE, int(die_bytes * config.hardware.workspace_share))
    block_tokens = config.engine.block_tokens
    layers, latent = model.config.num_hidden_layers, model.config.latent_dim
    block_bytes = layers * block_tokens * latent * model.dtype.itemsize
    most = pool.ub_memory_mib * MIB // block_bytes
    if most < 2:
        raise ConfigError(
            f"ub_memory_mib = {pool.ub_memory_mib} holds {most} KV blocks of {block_bytes} bytes; raise it"
        )
    return npus.reserve_kv_cache(block_bytes, max_blocks=most), block_bytes


def _kv_cache(
    model: DeepseekModel, blocks: int, block_tokens: int, arena: memoryview
) -> tuple[KvCache, DeviceMirror | None]:
    """The KV cache on the arena itself where the device is the CPU, else on the device with the arena as its image."""
    if model.device.type == "cpu":
        return KvCache(model.config, blocks, block_tokens, model.dtype, buffer=arena), None
    cache = KvCache(model.config, blocks, block_tokens, model.dtype, model.device)
    return cache, DeviceMirror(cache.tensor, arena)


def _engine_settings(config: ServeConfig, place: InstancePlace, model_len: int, blocks: int) -> EngineSettings:
    engine, pool, kvcache = config.engine, config.pools[place.pool], config.kvcache
    return EngineSettings(
        role=EngineRole(place.pool),
        block_tokens=engine.block_tokens,
        max_step_tokens=pool.max_step_tokens,
        max_sequences=pool.max_sequences,
        max_waiting=pool.max_waiting,
        max_model_len=engine.max_model_len or model_len,
        handoff_lease_s=engine.handoff_lease_s,
        prefix_reuse=engine.prefix_reuse,
        pool=kvcache.replicas > 0 and engine.prefix_reuse,
        store_decoded=kvcache.stores_decoded(reasoning=config.model.reasoning),
        max_store_blocks=int(blocks * kvcache.max_store_share),
    )


def _load(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> DeepseekModel:
    """The model, on the pool's copy of its weights where there is one."""
    images = access.model_cache(place.replica, place.node) if access is not None else None
    model, device = config.model, _device(config)
    try:
        return load_model(model.path, device=device, dtype=model.dtype, images=images, version=model.version)
    finally:
        if images is not None:
            images.close()  # the process goes on holding what it maps
        return_freed_memory()


def _device(config: ServeConfig) -> str:
    if config.model.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.model.device
