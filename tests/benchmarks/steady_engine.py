"""An engine process whose loop never stops: batches start and end, and rates are measured while one decodes.

This form is required for ranks of a group: a stopped one would make the others wait. One process is measured likewise.
"""

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch

from serving.allocator import keep_freed_memory
from serving.config.experts import ExpertsConfig
from serving.group.compute.expert_rank import ExpertRank, ExpertWeights
from serving.group.compute.rank_parts import RankParts
from serving.group.core.group_map import regroup_map
from serving.ids import NodeId, ReplicaId, SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.live.compute_model import end_idle_workers
from serving.instance.live.engine_news import LoopEvent
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model, product_forms
from serving.values.group import RankRole, RegroupOrder
from serving.values.instances import InstancePlace, RankPlace
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
    """Settings of one process; `room`: tokens of its KV cache; `folder`: for windows and slots of a group of ranks.

    With `experts` the first `ranks` have attention only, and so many ranks follow that have experts only.
    """

    model: Path
    dtype: DtypeName
    threads: int
    room: int
    rank: int = 0
    ranks: int = 1
    experts: int = 0
    folder: Path = Path()

    @property
    def place(self) -> InstancePlace:
        """The rank's place in its group."""
        role, index = RankRole.BOTH, self.rank
        if self.experts:
            index = max(0, self.rank - self.ranks)
            role = RankRole.ATTENTION if self.rank < self.ranks else RankRole.EXPERTS
        share = (index, self.experts or self.ranks)
        rank = RankPlace(self.rank, self.ranks, self.ranks + self.experts, "bench", role, *share)
        path = self.folder / f"rank-{self.rank}"
        return InstancePlace(ReplicaId("r"), "decode", NodeId("n"), (), path, "127.0.0.1", self.threads, rank)


CONFIG = ExpertsConfig(policy="none", slots="copied", deadline_s=60.0)


class SteadyExperts:
    """The child's side, of a rank that has experts only."""

    def __init__(self, order: EngineOrder, pipe: Connection) -> None:
        self._rank = ExpertRank(CONFIG, order.place, ExpertWeights(order.model, order.dtype))
        self._rank.start()
        pipe.send(self._rank.offer("x"))
        self._rank.follow(pipe.recv())

    def rate(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """No tokens: it has no sequences."""
        return 0.0

    def cpu_s(self, seconds: float) -> float:
        """CPU seconds of this process in this many idle seconds."""
        return _cpu_s(seconds)


class SteadyEngine:
    """The child's side."""

    def __init__(self, order: EngineOrder, pipe: Connection) -> None:
        torch.set_num_threads(order.threads)
        keep_freed_memory()
        grouped = order.ranks + order.experts > 1
        model = load_model(order.model, dtype=order.dtype, native=True, routed_experts=not order.experts)
        blocks = -(-order.room // BLOCK_TOKENS)
        cache = KvCache(model.config, blocks, BLOCK_TOKENS, model.dtype)
        if grouped:
            forms = partial(product_forms, order.model, model.device, native=True)
            self._rank = RankParts(CONFIG, order.place, model, order.model, forms)
            executor: Any = self._rank.executor(cache, order.threads, STEP_TOKENS)
            pipe.send(self._rank.offer("x"))
            self._rank.follow(pipe.recv())
        else:
            executor = _Alone(NativeGroupExecutor(model, cache, threads=order.threads, max_rows=STEP_TOKENS))
        longest = model.config.max_position_embeddings
        settings = EngineSettings(EngineRole.AGGREGATED, BLOCK_TOKENS, STEP_TOKENS, 64, max_model_len=longest)
        self._served = 0
        self._frames: list[tuple[float, int]] = []
        """Each step's end, and its tokens."""
        self._begun: set[SequenceId] = set()
        self._loop = engine_loop(EngineCalls(settings, blocks), executor, self._told)
        end_idle_workers()
        self._loop.start()

    def rate(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """Tokens per second while all prompts decode, until their end."""
        frames = self._decode(prompts, seconds)
        return sum(tokens for _, tokens in frames[1:]) / (frames[-1][0] - frames[0][0])

    def slow_step_s(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """99th percentile of the time from one step's tokens to the next while all prompts decode."""
        ends = [end for end, _ in self._decode(prompts, seconds)]
        gaps = sorted(after - before for before, after in pairwise(ends))
        return gaps[len(gaps) * 99 // 100]

    def prefill(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """Compute these prompts one after the other again and again, for so long; returns how many."""
        deadline, count = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            self._begun.clear()
            name = self._add(prompts[count % len(prompts)], 1)
            while name not in self._begun:
                time.sleep(0.0005)
            count += 1
        return count

    def _add(self, prompt: Sequence[int], tokens: int) -> SequenceId:
        self._served += 1
        name, sampling = SequenceId(str(self._served)), SamplingParams(temperature=0, max_tokens=tokens)
        self._loop.post(Add(SequenceSpec(name, tuple(prompt), sampling)))
        return name

    def _decode(self, prompts: Sequence[Sequence[int]], seconds: float) -> list[tuple[float, int]]:
        self._begun.clear()
        names = [self._add(prompt, 2048) for prompt in prompts]
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
        for name in names:
            self._loop.post(Cancel(name))
        while not self._loop.at_rest():
            time.sleep(0.01)
        return frames

    def cpu_s(self, seconds: float) -> float:
        """CPU seconds of this process in this many idle seconds."""
        return _cpu_s(seconds)

    def _told(self, news: list[LoopEvent]) -> None:
        tokens = [item for item in news if isinstance(item, Tokens)]
        self._begun.update(item.sequence_id for item in tokens)
        if tokens:
            self._frames.append((time.perf_counter(), sum(len(item.tokens) for item in tokens)))


def _cpu_s(seconds: float) -> float:
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


class _Alone:
    """The executor of one process: not a `GroupExecutor`."""

    def __init__(self, inner: NativeGroupExecutor) -> None:
        self.execute, self.prepare = inner.execute, inner.prepare


class SteadyProcesses:
    """One engine, or a group of them, each with this many threads and tokens; a context manager that ends them.

    Args:
        experts: ranks that have experts only, in addition to `ranks` without; 0 = all have both.
    """

    def __init__(
        self, model: Path, dtype: DtypeName, threads: int, room: int, ranks: int = 1, experts: int = 0
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="cloudmatrix-bench-", dir="/dev/shm")
        self._pipes, self._processes = [], []
        self._ranks = ranks
        for rank in range(ranks + experts):
            ours, theirs = context.Pipe()
            order = EngineOrder(model, dtype, threads, room, rank, ranks, experts, Path(self._folder.name))
            process = context.Process(target=_serve, args=(theirs, order), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        if ranks + experts > 1:
            offers = tuple(pipe.recv() for pipe in self._pipes)
            held = {one.rank: one.held for one in offers if one.role.has_experts}
            map_ = regroup_map(held, len(offers), offers[0].experts, 1)
            for pipe in self._pipes:
                pipe.send(RegroupOrder(1, map_, offers))

    def rate(self, prompts: Sequence[Sequence[int]], seconds: float) -> float:
        """Tokens per second of all together, each with its share of the prompts."""
        shares = [prompts[rank :: self._ranks] if rank < self._ranks else () for rank in range(len(self._pipes))]
        return sum(self._all("rate", [(share, seconds) for share in shares]))

    def slow_step_s(
        self, prompts: Sequence[Sequence[int]], beside: Sequence[Sequence[int]], seconds: float
    ) -> tuple[float, float]:
        """99th percentile of rank 0's step while it decodes, and the prompts that rank 1 computes meanwhile.

        Args:
            beside: prompts of rank 1; none = it does nothing.
        """
        self._pipes[0].send(("slow_step_s", (prompts, seconds)))
        if beside:
            self._pipes[1].send(("prefill", (beside, seconds + 0.5)))
        return self._pipes[0].recv(), self._pipes[1].recv() if beside else 0.0

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
    engine = (SteadyEngine if order.rank < order.ranks else SteadyExperts)(order, pipe)
    threading.current_thread().name = "calls"
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(engine, method)(*arguments))
