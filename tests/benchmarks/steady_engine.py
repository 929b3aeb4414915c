"""An engine process whose loop never stops: batches start and end, and rates are measured while one decodes.

This form is required for ranks of a group: a stopped one would make the others wait. One process is measured likewise.
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch

from serving.allocator import keep_freed_memory
from serving.group.compute.group_rank import RankWindow
from serving.group.compute.slot_mover import native_table
from serving.group.core.group_map import group_shape, opening_map
from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.live.compute_torch import end_idle_workers
from serving.instance.live.engine_news import LoopNews
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model, product_forms
from serving.model.native.rank_group import GroupPlace
from serving.model.slots.expert_slots import fill_all, make_slots
from serving.model.slots.expert_sources import expert_source
from serving.values.news import Tokens
from serving.values.orders import Add, Cancel
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.benchmarks.bare_engine import BLOCK_TOKENS, engine_loop
from tests.fakes.engine_calls import EngineCalls

STEP_TOKENS = 512
LEAST_STEPS = 8
_LIMIT_S = 120.0


@dataclass(frozen=True)
class EngineOrder:
    """Settings of one process; `room`: tokens of its KV cache; `folder`: for windows and slots of a group of ranks."""

    model: Path
    dtype: DtypeName
    threads: int
    room: int
    rank: int = 0
    ranks: int = 1
    folder: Path = Path()

    def path(self, what: str, rank: int) -> Path:
        """Path of a segment."""
        return self.folder / f"{what}-{rank}"


class SteadyEngine:
    """The child's side."""

    def __init__(self, order: EngineOrder, pipe: Connection) -> None:
        torch.set_num_threads(order.threads)
        keep_freed_memory()
        model = load_model(order.model, dtype=order.dtype, native=True)
        blocks = -(-order.room // BLOCK_TOKENS)
        cache = KvCache(model.config, blocks, BLOCK_TOKENS, model.dtype)
        self._executor = NativeGroupExecutor(model, cache, threads=order.threads, max_rows=STEP_TOKENS)
        self._kept: list[object] = []
        if order.ranks > 1:
            self._join(order, pipe)
        longest = model.config.max_position_embeddings
        settings = EngineSettings(EngineRole.AGGREGATED, BLOCK_TOKENS, STEP_TOKENS, 64, max_model_len=longest)
        self._served = 0
        self._frames: list[tuple[float, int]] = []
        """Each step's end, and its tokens."""
        self._begun: set[SequenceId] = set()
        executor: Any = self._executor if order.ranks > 1 else _Alone(self._executor)
        self._loop = engine_loop(EngineCalls(settings, blocks), executor, self._told)
        end_idle_workers()
        self._loop.start()

    def _join(self, order: EngineOrder, pipe: Connection) -> None:
        executor, model = self._executor, self._executor.model
        own = RankWindow.create(order.path("window", order.rank), executor.group.window_shape(order.ranks), order.rank)
        pipe.send(os.getpid())
        pids = pipe.recv()
        source = expert_source(model, order.model, lambda: product_forms(order.model, model.device, native=True))
        experts = model.config.expert_count
        map_ = opening_map(experts, order.ranks, 0, source.layers)
        count = group_shape(experts, order.ranks).slots[order.rank]
        slots = make_slots("copied", source, count, order.path("slots", order.rank), map_.slots[order.rank] - count)
        fill_all(slots, [map_.placement(layer)[order.rank] for layer in range(source.layers)])
        windows = [
            own if rank == order.rank else RankWindow.attach(order.path("window", rank)) for rank in range(order.ranks)
        ]
        self._kept = [slots, windows]
        memory, cores = [window.memory for window in windows], os.cpu_count() or 1
        table = native_table(map_, order.rank)
        executor.group.join(GroupPlace(order.rank, memory, pids, slots.table, table, cores=cores, deadline_s=60.0))

    def rate(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """Tokens per second while all prompts decode, until their end."""
        names = []
        self._begun.clear()
        for prompt in prompts:
            self._served += 1
            names.append(SequenceId(str(self._served)))
            sampling = SamplingParams(temperature=0, max_tokens=2048)
            self._loop.post(Add(SequenceSpec(names[-1], tuple(prompt), sampling)))
        deadline = time.monotonic() + _LIMIT_S
        while len(self._begun) < len(names):
            assert time.monotonic() < deadline, "the prompts do not begin"
            time.sleep(0.01)
        time.sleep(0.2)
        self._frames.clear()
        time.sleep(seconds)
        while len(self._frames) < LEAST_STEPS:
            assert time.monotonic() < deadline, "no steps are made"
            time.sleep(0.01)
        frames = list(self._frames)
        found = sum(tokens for _, tokens in frames[1:]) / (frames[-1][0] - frames[0][0])
        for name in names:
            self._loop.post(Cancel(name))
        while not self._loop.at_rest():
            time.sleep(0.01)
        return found

    def cpu_s(self, seconds: float) -> float:
        """CPU seconds of this process in this many idle seconds."""
        before = time.process_time()
        time.sleep(seconds)
        return time.process_time() - before

    def _told(self, news: list[LoopNews]) -> None:
        tokens = [item for item in news if isinstance(item, Tokens)]
        self._begun.update(item.sequence_id for item in tokens)
        if tokens:
            self._frames.append((time.perf_counter(), sum(len(item.tokens) for item in tokens)))


class _Alone:
    """The executor of one process: not a `GroupExecutor`."""

    def __init__(self, inner: NativeGroupExecutor) -> None:
        self.execute, self.prepare = inner.execute, inner.prepare


class SteadyProcesses:
    """One engine, or a group of them, each with this many threads and tokens; a context manager that ends them."""

    def __init__(self, model: Path, dtype: DtypeName, threads: int, room: int, ranks: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="cloudmatrix-bench-", dir="/dev/shm")
        self._pipes, self._processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            order = EngineOrder(model, dtype, threads, room, rank, ranks, Path(self._folder.name))
            process = context.Process(target=_serve, args=(theirs, order), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        if ranks > 1:
            pids = [pipe.recv() for pipe in self._pipes]
            for pipe in self._pipes:
                pipe.send(pids)

    def rate(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """Tokens per second of all together, each with its share of the prompts."""
        count = len(self._pipes)
        return sum(self._all("rate", [(prompts[rank::count], seconds) for rank in range(count)]))

    def idle_cores(self, seconds: float) -> float:
        """Share of a core that all together use when idle."""
        return sum(self._all("cpu_s", [(seconds,)] * len(self._pipes))) / seconds

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[float]:
        for pipe, own in zip(self._pipes, arguments, strict=True):
            pipe.send((method, own))
        return [pipe.recv() for pipe in self._pipes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(pipe: Connection, order: EngineOrder) -> None:
    """Serve calls in the child until it is killed."""
    engine = SteadyEngine(order, pipe)
    threading.current_thread().name = "calls"
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(engine, method)(*arguments))
