"""Real tokens: a model, native or in torch, its KV cache in the instance's shared memory or on an accelerator."""

import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

import msgspec
import torch
from torch import Tensor

from hardware.clock import WallClock
from hardware.device.instance import WEIGHTS, WORKSPACE, VirtualInstance
from hardware.device.npu import VirtualNpu
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.plane import Plane
from hardware.units import MIB
from serving.allocator import keep_freed_memory, return_freed_memory
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, EngineError, ModelError
from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matchers
from serving.grammar.vocabulary import Vocabulary
from serving.group.compute.rank_parts import RankParts
from serving.ids import BlockId, SequenceId
from serving.instance.core.ports import KvTransport, StepExecutor
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.instance.executors.torch_executor import TorchExecutor
from serving.instance.live.compute import Attached, InstanceCache, KvBlocks, blocks_in_ub
from serving.instance.live.pool_access import PoolAccess
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import PoolContextCache
from serving.model.dense_form import served_architecture
from serving.model.kv_cache import KvCache
from serving.model.kv_layout import KvLayout
from serving.model.kv_shape import split_layers
from serving.model.loader import load_model, product_forms
from serving.model.model import Model
from serving.model.native import library
from serving.model.parcel import model_version
from serving.model.size import rank_weight_bytes, weight_bytes
from serving.values.instances import InstancePlace
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan

logger = logging.getLogger(__name__)


class FormChoices(TypedDict):
    """The arguments of `load_model` that choose how weight matrices are stored."""

    native: bool
    coarse_drafts: bool
    short: bool | None


_INSTRUCTIONS = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2"}
PULLS_AT_ONCE = 4
"""Concurrent handoff pulls, so that a stalled source does not delay pulls from others."""


class TorchCompute:
    """A `Compute` with a model.

    Raises: ModelError, ConfigError, HardwareError.
    Effects: sets torch's threads and the allocator's settings for the whole process.
    """

    time_scale = 1.0
    pulls_at_once = PULLS_AT_ONCE
    status_period_s = None

    def __init__(self, config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> None:
        torch.set_num_threads(place.threads)
        keep_freed_memory()
        self.clock = WallClock()
        self._config = config
        spec = CLOUDMATRIX_NODE.npu.with_hbm_per_die(config.hardware.hbm_per_die_bytes)
        self.npus = VirtualInstance(place.replica, [VirtualNpu(npu, spec, self.clock) for npu in place.npus])
        self._threads = place.threads
        self._max_rows = config.pools[place.pool].max_step_tokens
        indexers = served_architecture(config).indexer is not None
        self._native = not indexers and computes_natively(config)
        if place.rank is not None and not self._native:
            raise ConfigError(f"[{place.pool}] ep = {place.rank.ranks} needs the native step: set it to 1")
        self._model = _load(config, place, access, native=self._native, indexers=indexers)
        self._rank = self._make_rank(config, place) if place.rank is not None else None
        self._grammars = Grammars(self._vocabulary, route_for_steps() if self._native else None)
        self.max_model_len = self._model.config.max_position_embeddings
        self.draft_tokens = _draft_tokens(config, self._model)
        self.speculation = self.draft_tokens > 0
        self.forced_tokens = config.engine.forced_tokens if self._native else 0
        self.lookup_tokens = config.engine.lookup_tokens if config.engine.drafts == "lookup" else 0
        # The draft layer keeps its rows after those of the model, so shared or moved blocks include them.
        self._kv_layers = len(self._model.config.layers) + self.speculation
        self._split = None if self.speculation else split_layers(self._model.config)
        self.kv = self._take_memory(config.pools[place.pool].ub_memory_mib * MIB)
        self.on_moved = partial(self.npus.record_moved, Plane.RDMA)
        self.record_step = self.npus.record_step
        self._computes = ""
        self._probe: float | None = None

    def attach(self, arena: memoryview) -> Attached:
        """Put the KV cache on the arena on a CPU, else on the device with the arena as mirror; see `Compute.attach`."""
        model, blocks, engine = self._model, self.kv.count, self._config.engine
        mirror = None
        on_cpu = model.device.type == "cpu"
        cache = KvCache(
            model.config,
            blocks,
            engine.block_tokens,
            model.dtype,
            model.device,
            arena if on_cpu else None,
            num_layers=self._kv_layers,
            kv_dtype=engine.kv_dtype,
            split=self._split,
        )
        if not on_cpu:
            mirror = DeviceMirror(cache.tensor, arena)
        section = self._config.model
        layout = f"{cache.layout_fingerprint}-{section.version or model_version(section.path)}"
        executor = self._executor(cache)
        self._computes = _name_of(executor, model.device.type)
        if self._rank is None:  # a rank's steps need its peers
            first_block = tuple(map(BlockId, range(self.kv.width)))
            self._probe = probed_tokens_per_s(executor, first_block, engine.block_tokens)
        end_idle_workers()  # from now on the engine's thread computes
        return Attached(executor, layout, layout, mirror, self._rank, self._grammars)

    def transport(self, moves: UbTransport) -> KvTransport:
        """Returns the transport unchanged."""
        return moves

    def cache(self, pool: PoolContextCache) -> InstanceCache:
        """Returns the cache unchanged."""
        return pool

    def facts(self) -> dict[str, Any]:
        """Name and speed [tokens/s] of the executor; for a rank also its `ExpertFacts` as `experts`."""
        experts = self._rank.facts() if self._rank is not None else None
        own = {"computes": self._computes, "probe_tokens_per_s": self._probe}
        return own if experts is None else {**own, "experts": msgspec.to_builtins(experts)}

    def stop(self) -> None:
        """Stop a rank's waiting for its peers."""
        if self._rank is not None:
            self._rank.leave()

    def close(self) -> None:
        """Free the memory, see `Compute.close`."""
        if self._rank is not None:
            self._rank.close()

    def _executor(self, cache: KvCache) -> StepExecutor:
        model, matchers = self._model, Matchers(self._grammars)
        if not self._native:
            return TorchExecutor(model, cache, matchers)
        if self._rank is not None:
            return self._rank.executor(cache, self._threads, self._max_rows, matchers, self.forced_tokens)
        try:
            return NativeExecutor(
                model,
                cache,
                threads=self._threads,
                max_rows=self._max_rows,
                matchers=matchers,
                most_forced=self.forced_tokens,
            )
        except ModelError as error:
            if self._config.engine.executor == "native":
                raise
            logger.warning("the native step cannot compute this model (%s); torch does, slower", error)
            return TorchExecutor(model, cache, matchers)

    def _vocabulary(self) -> Vocabulary:
        folder = self._config.model.tokenizer_folder
        return Tokenizer.from_folder(folder).vocabulary(self._model.config.vocab_size)

    def _make_rank(self, config: ServeConfig, place: InstancePlace) -> RankParts:
        model, path = self._model, config.model.path
        forms = partial(product_forms, path, model.device, **_form_choices(config, native=True))
        return RankParts(config.experts, place, model, path, forms)

    def _weight_bytes(self) -> int:
        folder, itemsize = self._config.model.path, self._model.dtype.itemsize
        if self._rank is None:
            return weight_bytes(folder, itemsize)
        return rank_weight_bytes(folder, itemsize, self._rank.experts.experts, self._rank.experts.own)

    def _take_memory(self, ub_bytes: int) -> KvBlocks:
        """Book weights, workspace and KV blocks on the dies."""
        config, model = self._config, self._model
        self.npus.reserve_spread(WEIGHTS, self._weight_bytes())
        die_bytes = config.hardware.hbm_per_die_bytes
        self.npus.reserve_per_die(WORKSPACE, int(die_bytes * config.hardware.workspace_share))
        layout = KvLayout.of(model.config.row, model.dtype, config.engine.kv_dtype)
        layers, split = self._kv_layers, None
        if self._split is not None:
            layers, split = self._split.layers, self._split.split
        block_bytes = layers * config.engine.block_tokens * layout.row_bytes
        count = self.npus.reserve_kv_cache(block_bytes, max_blocks=blocks_in_ub(ub_bytes, block_bytes))
        return KvBlocks(count, block_bytes, block_bytes, split)


def computes_natively(config: ServeConfig) -> bool:
    """Whether to use the native step: where possible, unless the configuration selects torch.

    Raises: ConfigError if the configuration requires it and it is not available.
    Effects: may compile the library, once per machine; logs the instruction set, or why the library is unavailable.
    """
    wanted, device = config.engine.executor, _device(config)
    if wanted == "torch" or (wanted == "auto" and device != "cpu"):
        return False
    if device != "cpu":
        raise ConfigError(f'[engine] executor = "native" needs a CPU, and the model computes on {device}: use "torch"')
    instructions = library.instructions()
    if instructions is not None:
        logger.info("computing with the native step, %s", instructions)
    elif wanted == "native":
        raise ConfigError('[engine] executor = "native": there is no native library here, see the log; use "auto"')
    return instructions is not None


def _name_of(executor: StepExecutor, device: str) -> str:
    if isinstance(executor, TorchExecutor):
        return "torch" if device != "cpu" else "torch on the CPU, several times slower than the native step"
    return f"native step, {_INSTRUCTIONS.get(library.instructions() or '', 'no vector instructions')}"


def _draft_tokens(config: ServeConfig, model: Model) -> int:
    """The draft layer's most draft tokens per step; 0 if the checkpoint has none, or drafts come from elsewhere."""
    wanted = config.engine.draft_tokens if config.engine.drafts_by_layer else 0
    if wanted and not model.mtp:
        logger.warning("%s has no draft layer (MTP): draft_tokens = %d is treated as 0", config.model.path.name, wanted)
        return 0
    return wanted


def _load(
    config: ServeConfig, place: InstancePlace, access: PoolAccess | None, *, native: bool, indexers: bool
) -> Model:
    """The model, using the pool's copy of its weights if there is one."""
    images = access.model_cache(place.replica, place.node) if access is not None else None
    model, device = config.model, _device(config)
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


def _device(config: ServeConfig) -> str:
    if config.model.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.model.device


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


# Releases the OpenMP workers of a thread that ran a parallel region.
#
# libgomp counts the workers of all threads of a process. If there are more than CPUs, its workers sleep immediately
# instead of spinning for the next piece of work, although most of them are idle: an engine of two threads on two CPUs,
# whose model was loaded by another thread with two, took 1.6 times as long for a torch step, mostly for wake-ups.

_PAUSE_HARD = 2


def end_idle_workers() -> bool:
    """End the OpenMP workers of the calling thread; new ones start on demand.

    Returns: False, without effect, if OpenMP's library lacks the function.
    Effects: ends threads of OpenMP.
    Source: `omp_pause_resource_all` of OpenMP 5.0.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    return pause is not None and pause(_PAUSE_HARD) == 0


# Decoding speed of an instance, measured once at its start and shown to users.

ENOUGH_S = 0.25
"""No probe step starts later [s], so that models with slow steps do not delay the start."""
_STEP = -2
"""A step number that no engine uses."""


def probed_tokens_per_s(
    executor: StepExecutor,
    blocks: Sequence[BlockId],
    block_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Decode a made-up sequence within its first KV block. Call it before the engine takes its first step.

    Args:
        blocks: those with the first `block_tokens` positions of a sequence.
        clock: monotonic [s].
    Returns: decode steps per second of one sequence; the first step, with cold memory, counts only if it is the
        only one. None if the executor refuses it.
    Effects: overwrites these blocks.
    """
    token, known, marks = 0, [0], [clock()]
    try:
        for start in range(block_tokens):
            order = SampleOrder(SamplingParams(temperature=0.0), known[:1], known[1:])
            step = SequenceStep(SequenceId("probe"), (token,), start, blocks, order, alone=True)
            (token,) = executor.execute(StepPlan(_STEP, (step,))).results[0].tokens
            known.append(token)
            marks.append(clock())
            if marks[-1] - marks[0] > ENOUGH_S:
                break
    except (EngineError, ValueError):
        return None
    first = 1 if len(marks) > 2 else 0
    return (len(marks) - 1 - first) / max(marks[-1] - marks[first], 1e-9)
