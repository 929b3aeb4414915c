"""A model loaded by torch, which computes steps with it, or lets the native library do so."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

from serving.allocator import return_freed_memory
from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.group.compute.rank_parts import RankParts
from serving.ids import BlockId
from serving.instance.core.ports import StepExecutor
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.instance.live.compute_native import native_name
from serving.instance.live.model_part import Arena, AttachedPart, StepSettings
from serving.instance.live.pool_access import PoolAccess
from serving.model.image_bank import name_of
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model, product_forms
from serving.model.model import Model
from serving.values.instances import InstancePlace

logger = logging.getLogger(__name__)


class FormChoices(TypedDict):
    """The arguments of `load_model` that choose how weight matrices are stored."""

    native: bool
    coarse_drafts: bool
    short: bool | None


class TorchPart:
    """A `ModelPart` in torch.

    Raises: ModelError, ConfigError, HardwareError.
    Effects: sets torch's threads for the whole process.
    """

    def __init__(
        self,
        config: ServeConfig,
        place: InstancePlace,
        access: PoolAccess | None,
        device: str,
        *,
        native: bool,
        indexers: bool,
    ) -> None:
        torch.set_num_threads(place.threads)
        self._native, self._required = native, config.engine.executor == "native"
        self._model = model = _load(config, place, access, device, native=native, indexers=indexers)
        self.config, self.dtype, self.drafts = model.config, name_of(model.dtype), bool(model.mtp)
        self.rank: RankParts | None = None
        if place.rank is not None:
            forms = partial(product_forms, config.model.path, model.device, **_form_choices(config, native=True))
            self.rank = RankParts(config.experts, place, model, config.model.path, forms)

    def attach(self, arena: Arena, settings: StepSettings) -> AttachedPart:
        """The KV cache is on the arena on a CPU, else on the device, with the arena as mirror."""
        model, on_cpu = self._model, self._model.device.type == "cpu"
        cache = KvCache(
            model.config,
            arena.blocks,
            arena.block_tokens,
            model.dtype,
            model.device,
            arena.memory if on_cpu else None,
            num_layers=arena.layers,
            kv_dtype=arena.kv_dtype,
            split=arena.split,
        )
        executor = self._executor(cache, settings)
        computes = native_name()
        if isinstance(executor, TorchExecutor):
            computes = "torch on the CPU, several times slower than the native step" if on_cpu else "torch"
        mirror = None if on_cpu else DeviceMirror(cache.tensor, arena.memory)
        return AttachedPart(executor, cache.layout_fingerprint, computes, mirror)

    def _executor(self, cache: KvCache, settings: StepSettings) -> StepExecutor:
        threads, rows, matchers = settings.threads, settings.max_rows, settings.matchers
        if not self._native:
            return TorchExecutor(self._model, cache, matchers)
        if self.rank is not None:
            return self.rank.executor(cache, threads, rows, matchers, settings.forced_tokens)
        try:
            return NativeExecutor(
                self._model,
                cache,
                threads=threads,
                max_rows=rows,
                matchers=matchers,
                most_forced=settings.forced_tokens,
            )
        except ModelError as error:
            if self._required:
                raise
            logger.warning("the native step cannot compute this model (%s); torch does, slower", error)
            return TorchExecutor(self._model, cache, matchers)


def _load(
    config: ServeConfig, place: InstancePlace, access: PoolAccess | None, device: str, *, native: bool, indexers: bool
) -> Model:
    """The model, using the pool's copy of its weights if there is one."""
    images = access.model_cache(place.replica, place.node) if access is not None else None
    model = config.model
    try:
        return load_model(
            model.path,
            device=device,
            dtype=model.dtype,
            images=images,
            version=model.version,
            **_form_choices(config, native=native),
            routed_experts=place.rank is None or config.experts.slots == "mapped",
            bf16_results=config.model.expert_results == "bfloat16",
            indexers=indexers,
        )
    finally:
        if images is not None:
            images.close()  # the process keeps the mapping
        return_freed_memory()


def _form_choices(config: ServeConfig, *, native: bool) -> FormChoices:
    """The arguments of `load_model` and `product_forms` that choose how weight matrices are stored."""
    short = config.model.short_weights
    return FormChoices(
        native=native,
        coarse_drafts=native and config.engine.drafts_by_layer,
        short=None if short == "auto" else short == "on",
    )


# KV blocks of an accelerator, mirrored in the UB segment during a handoff.
#
# On the CPU the KV cache itself is in shared memory, and no mirror is needed. An accelerator's memory cannot be mapped
# by other processes, so blocks are saved to the same place of the host arena before they are registered, and loaded
# from it after they were pulled.


class DeviceMirror:
    """Copies blocks between a device's KV cache and an arena of shared memory of the same layout.

    Args:
        blocks: `[num_blocks, ...]` on the device, contiguous and in order.
        arena: at least as many bytes, writable, on the host.
    """

    def __init__(self, blocks: Tensor, arena: memoryview) -> None:
        self._device = blocks
        host = torch.frombuffer(arena, dtype=blocks.dtype, count=blocks.numel())
        self._host = host.view(blocks.shape)

    def save(self, blocks: Sequence[BlockId]) -> None:
        """Copy from device to arena; complete on return."""
        index = torch.tensor(blocks, dtype=torch.int64)
        self._host[index] = self._device[index.to(self._device.device)].to("cpu")

    def load(self, blocks: Sequence[BlockId]) -> None:
        """Copy from arena to device; complete on return."""
        index = torch.tensor(blocks, dtype=torch.int64)
        self._device[index.to(self._device.device)] = self._host[index].to(self._device.device)
        if self._device.is_cuda:
            torch.cuda.synchronize(self._device.device)
