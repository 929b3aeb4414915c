"""Real tokens: a model, native or in torch, its KV cache in the instance's shared memory or on an accelerator.

Imports torch only if torch computes, or has to read the checkpoint in this process: it takes 130 MiB and seconds.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hardware.clock import WallClock
from hardware.device.instance import WEIGHTS, WORKSPACE, VirtualInstance
from hardware.device.npu import VirtualNpu
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.plane import Plane
from hardware.units import MIB
from serving.allocator import keep_freed_memory
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, EngineError
from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matchers
from serving.grammar.vocabulary import Vocabulary
from serving.ids import BlockId, SequenceId
from serving.instance.core.ports import KvTransport, StepExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.instance.live.compute import Attached, InstanceCache, KvBlocks, blocks_in_ub
from serving.instance.live.compute_native import native_part
from serving.instance.live.model_part import Arena, ModelPart, StepSettings
from serving.instance.live.pool_access import PoolAccess
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import PoolContextCache
from serving.model.dense_form import served_architecture
from serving.model.kv_shape import ITEM_BYTES, row_layout, split_layers
from serving.model.native import library
from serving.model.parcel import model_version
from serving.model.size import rank_weight_bytes, weight_bytes
from serving.values.instances import InstancePlace
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan

logger = logging.getLogger(__name__)

PULLS_AT_ONCE = 4
"""Concurrent handoff pulls, so that a stalled source does not delay pulls from others."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Devices of the drivers of NVIDIA, also under Windows, and AMD: without one of them torch finds no accelerator."""


class ModelCompute:
    """A `Compute` with a model.

    Raises: ModelError, ConfigError, HardwareError.
    Effects: sets the allocator's settings, and torch's threads, for the whole process.
    """

    time_scale = 1.0
    pulls_at_once = PULLS_AT_ONCE
    status_period_s = None

    def __init__(self, config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> None:
        keep_freed_memory()
        self.clock = WallClock()
        self._config = config
        spec = CLOUDMATRIX_NODE.npu.with_hbm_per_die(config.hardware.hbm_per_die_bytes)
        self.npus = VirtualInstance(place.replica, [VirtualNpu(npu, spec, self.clock) for npu in place.npus])
        self._threads = place.threads
        self._max_rows = config.pools[place.pool].max_step_tokens
        indexers = served_architecture(config).indexer is not None
        native = not indexers and computes_natively(config)
        if place.rank is not None and not native:
            raise ConfigError(f"[{place.pool}] ep = {place.rank.ranks} needs the native step: set it to 1")
        self._part = _part(config, place, access, native=native, indexers=indexers)
        self._grammars = Grammars(self._vocabulary, route_for_steps() if native else None)
        self.max_model_len = self._part.config.max_position_embeddings
        self.draft_tokens = _draft_tokens(config, drafts=self._part.drafts)
        self.speculation = self.draft_tokens > 0
        self.forced_tokens = config.engine.forced_tokens if native else 0
        self.lookup_tokens = config.engine.lookup_tokens if config.engine.drafts == "lookup" else 0
        # The draft layer keeps its rows after those of the model, so shared or moved blocks include them.
        self._kv_layers = len(self._part.config.layers) + self.speculation
        self._split = None if self.speculation else split_layers(self._part.config)
        self.kv = self._take_memory(config.pools[place.pool].ub_memory_mib * MIB)
        self.on_moved = partial(self.npus.record_moved, Plane.RDMA)
        self.record_step = self.npus.record_step
        self._computes = ""
        self._probe: float | None = None

    def attach(self, arena: memoryview) -> Attached:
        """Put the KV cache on the arena on a CPU, else on the device with the arena as mirror; see `Compute.attach`."""
        engine, section, rank = self._config.engine, self._config.model, self._part.rank
        memory = Arena(arena, self.kv.count, engine.block_tokens, self._kv_layers, engine.kv_dtype, self._split)
        settings = StepSettings(self._threads, self._max_rows, Matchers(self._grammars), self.forced_tokens)
        made = self._part.attach(memory, settings)
        layout = f"{made.layout}-{section.version or model_version(section.path)}"
        self._computes = made.computes
        if rank is None:  # a rank's steps need its peers
            first_block = tuple(map(BlockId, range(self.kv.width)))
            self._probe = probed_tokens_per_s(made.executor, first_block, engine.block_tokens)
        end_idle_workers()  # from now on the engine's thread computes
        return Attached(made.executor, layout, layout, made.mirror, rank, self._grammars)

    def transport(self, moves: UbTransport) -> KvTransport:
        """Returns the transport unchanged."""
        return moves

    def cache(self, pool: PoolContextCache) -> InstanceCache:
        """Returns the cache unchanged."""
        return pool

    def facts(self) -> dict[str, Any]:
        """Name and speed [tokens/s] of the executor; for a rank also its `ExpertFacts` as `experts`."""
        experts = self._part.rank.facts() if self._part.rank is not None else None
        own = {"computes": self._computes, "probe_tokens_per_s": self._probe}
        return own if experts is None else {**own, "experts": msgspec.to_builtins(experts)}

    def stop(self) -> None:
        """Stop a rank's waiting for its peers."""
        if self._part.rank is not None:
            self._part.rank.leave()

    def close(self) -> None:
        """Free the memory, see `Compute.close`."""
        if self._part.rank is not None:
            self._part.rank.close()

    def _vocabulary(self) -> Vocabulary:
        folder = self._config.model.tokenizer_folder
        return Tokenizer.from_folder(folder).vocabulary(self._part.config.vocab_size)

    def _weight_bytes(self) -> int:
        folder, itemsize, rank = self._config.model.path, ITEM_BYTES[self._part.dtype], self._part.rank
        if rank is None:
            return weight_bytes(folder, itemsize)
        return rank_weight_bytes(folder, itemsize, rank.experts.experts, rank.experts.own)

    def _take_memory(self, ub_bytes: int) -> KvBlocks:
        """Book weights, workspace and KV blocks on the dies."""
        config, part = self._config, self._part
        self.npus.reserve_spread(WEIGHTS, self._weight_bytes())
        die_bytes = config.hardware.hbm_per_die_bytes
        self.npus.reserve_per_die(WORKSPACE, int(die_bytes * config.hardware.workspace_share))
        row_bytes = row_layout(part.config.row, part.dtype, config.engine.kv_dtype).row_bytes
        layers, split = self._kv_layers, None
        if self._split is not None:
            layers, split = self._split.layers, self._split.split
        block_bytes = layers * config.engine.block_tokens * row_bytes
        count = self.npus.reserve_kv_cache(block_bytes, max_blocks=blocks_in_ub(ub_bytes, block_bytes))
        return KvBlocks(count, block_bytes, block_bytes, split)


def _part(
    config: ServeConfig, place: InstancePlace, access: PoolAccess | None, *, native: bool, indexers: bool
) -> ModelPart:
    """The loaded model: without torch if the native step computes and the pool keeps the weights."""
    found = native_part(config, place, access) if native and place.rank is None else None
    if found is not None:
        return found
    from serving.instance.live.compute_torch import TorchPart

    return TorchPart(config, place, access, device_of(config), native=native, indexers=indexers)


def computes_natively(config: ServeConfig) -> bool:
    """Whether to use the native step: where possible, unless the configuration selects torch.

    Raises: ConfigError if the configuration requires it and it is not available.
    Effects: may compile the library, once per machine; logs the instruction set, or why the library is unavailable.
    """
    wanted, device = config.engine.executor, device_of(config)
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


def device_of(config: ServeConfig) -> str:
    """The device that a configuration computes on; `auto` = an accelerator if torch can use one."""
    if config.model.device != "auto":
        return config.model.device
    if not any(Path(device).exists() for device in _ACCELERATORS):
        return "cpu"
    import torch  # which alone knows whether it can use the device

    return "cuda" if torch.cuda.is_available() else "cpu"


def _draft_tokens(config: ServeConfig, *, drafts: bool) -> int:
    """The draft layer's most draft tokens per step; 0 if the checkpoint has none, or drafts come from elsewhere."""
    wanted = config.engine.draft_tokens if config.engine.drafts_by_layer else 0
    if wanted and not drafts:
        logger.warning("%s has no draft layer (MTP): draft_tokens = %d is treated as 0", config.model.path.name, wanted)
        return 0
    return wanted


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
