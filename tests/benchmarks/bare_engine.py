"""The engine alone: one process, no link, no gateway, no HTTP.

Batches decode in the loop that drives served instances; the rest is measured call by call, in one thread of control.

It runs in a separate process, like served instances, in which OpenMP's workers spin for some microseconds and then
sleep: longer spinning would take the cores from the engine that is measured in turn; sleeping immediately would halve
the speed of several threads.
"""

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self
from unittest.mock import patch

import torch

from hardware.clock import WallClock
from serving.allocator import keep_freed_memory
from serving.ids import ReplicaId, SequenceId
from serving.instance.core.ports import StepExecutor
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.instance.live.compute_model import end_idle_workers
from serving.instance.live.engine_loop import EngineLoop
from serving.instance.live.engine_news import LoopEvent
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native import library
from serving.values.news import Tokens
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.fakes.engine_calls import EngineCalls
from tests.fakes.executor import FakeExecutor
from tests.fakes.transport import FakeFabric, FakeTransport

BLOCK_TOKENS = 16
SPINS = "2000"
WARM_STEPS = 4
_ENDLESS = 2048  # output tokens of a sequence that is cancelled long before
_LOOK_S = 5.0
DType = Literal["float32", "bfloat16"]
ExecutorKind = Literal["auto", "native", "torch"]


def make_executor(
    model: Path,
    kind: ExecutorKind,
    dtype: DType,
    blocks: int,
    threads: int,
    step_tokens: int,
    drafts: int,
    device: str = "cpu",
    short: bool | None = None,
    kv_dtype: KvDtype = "auto",
    instructions: str | None = None,
) -> tuple[StepExecutor, Model]:
    """An executor over a checkpoint with a KV cache of its own, and its model.

    `short`: bfloat16 weights in their short form; None = the model's default. `instructions`: of the native library, in
    this process from now on; None = the processor's best.
    """
    if instructions is not None and (found := library.load()) is not None:
        found.use_instructions(instructions)
    native = kind == "native" or (kind == "auto" and device == "cpu" and library.load() is not None)
    coarse = native and drafts > 0
    loaded = load_model(model, device=device, dtype=dtype, native=native, coarse_drafts=coarse, short=short)
    layers = len(loaded.config.layers) + (drafts > 0)
    cache = KvCache(
        loaded.config, blocks, BLOCK_TOKENS, loaded.dtype, loaded.device, num_layers=layers, kv_dtype=kv_dtype
    )
    if native:
        return NativeExecutor(loaded, cache, threads=threads, max_rows=step_tokens), loaded
    return TorchExecutor(loaded, cache), loaded


def engine_loop(engine: EngineCalls, executor: Any, on_news: Callable[[list[LoopEvent]], None]) -> EngineLoop:
    """The loop that serves, over an engine without links to others."""
    transport = FakeTransport(FakeFabric(), ReplicaId("bench"), FakeExecutor(1, BLOCK_TOKENS))
    return EngineLoop(engine, executor, transport, WallClock(), on_news)


@dataclass(frozen=True, slots=True)
class Alone:
    """Decoding of one sequence.

    Args:
        tokens: after the first one. steps: that produced them.
        verified: number of verifications of draft tokens.
        drafted: verified draft tokens. accepted: accepted ones, by position in the step.
    """

    tokens: int
    steps: int
    seconds: float
    verified: int = 0
    drafted: int = 0
    accepted: tuple[int, ...] = ()


class BareEngine:
    """An aggregated engine over an executor, with the default settings of served instances.

    Args:
        kv_tokens: size of the KV cache.
        threads: of torch and of the executor, for the whole process.
        drafts: most draft tokens of a decode step; the engine makes fewer if they do not pay.
        options: device, short, kv_dtype, instructions, as for `make_executor`.
    """

    def __init__(
        self,
        model: Path,
        dtype: DType,
        threads: int,
        kv_tokens: int,
        executor: ExecutorKind = "auto",
        step_tokens: int = 512,
        drafts: int = 0,
        **options: Any,
    ) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        blocks = -(-kv_tokens // BLOCK_TOKENS)
        self._executor, loaded = make_executor(model, executor, dtype, blocks, threads, step_tokens, drafts, **options)
        settings = EngineSettings(
            role=EngineRole.AGGREGATED,
            block_tokens=BLOCK_TOKENS,
            max_step_tokens=step_tokens,
            max_sequences=64,
            max_model_len=loaded.config.max_position_embeddings,
            draft_tokens=drafts,
            speculation=drafts > 0,
        )
        self._engine = EngineCalls(settings, blocks)
        self._clock = WallClock()
        self._served = 0

    def first_token_s(self, prompt: Sequence[int]) -> float:
        """Time from a prompt's arrival to its first token [s]; the sequence ends there."""
        begun = time.perf_counter()
        sequence = self._add(prompt, 2)
        while not self._step():
            pass
        elapsed = time.perf_counter() - begun
        self._engine.cancel(sequence, self._clock.now())
        return elapsed

    def generate_s(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """Time to generate `max_tokens` tokens for all prompts together [s]."""
        begun = time.perf_counter()
        for prompt in prompts:
            self._add(prompt, max_tokens)
        tokens = 0
        while not self._engine.idle():
            tokens += self._step()
        assert tokens == len(prompts) * max_tokens, f"{tokens} tokens came"
        return time.perf_counter() - begun

    def decode_tokens_per_s(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Tokens per second of `steps` steps in which all prompts decode together; all sequences end there."""
        sequences = [self._add(prompt, _ENDLESS) for prompt in prompts]
        frames: list[tuple[float, int]] = []
        begun_ones: set[SequenceId] = set()
        enough = threading.Event()

        def told(news: list[LoopEvent]) -> None:
            events = [item for item in news if isinstance(item, Tokens)]
            begun_ones.update(event.sequence_id for event in events)
            tokens = sum(len(event.tokens) for event in events)
            if len(begun_ones) == len(sequences):
                frames.append((time.perf_counter(), tokens))
            if len(frames) > WARM_STEPS + steps:
                enough.set()

        loop = engine_loop(self._engine, self._executor, told)
        end_idle_workers()  # as an instance does before its engine starts
        loop.start()
        while not enough.wait(_LOOK_S):
            assert loop.progress_age_s() < math.inf, "the engine died"
        loop.stop()
        for sequence in sequences:
            self._engine.cancel(sequence, self._clock.now())
        self._engine.take_events()
        assert self._engine.idle(), "a cancelled sequence is still there"
        timed = frames[WARM_STEPS : WARM_STEPS + steps + 1]
        tokens = sum(count for _, count in timed[1:])
        assert tokens >= len(prompts) * steps, f"{tokens} tokens came"
        return tokens / (timed[-1][0] - timed[0][0])

    def decode_alone(self, prompt: Sequence[int], max_tokens: int) -> "Alone":
        """One sequence by itself, from its first token to its last."""
        self._add(prompt, max_tokens)
        while not self._step():
            pass
        before = self._engine.snapshot(self._clock.now())
        begun, tokens, steps = time.perf_counter(), 0, 0
        while not self._engine.idle():
            tokens += self._step()
            steps += 1
        elapsed = time.perf_counter() - begun
        after = self._engine.snapshot(self._clock.now())
        accepted = zip(after.accepted_drafts_total, before.accepted_drafts_total, strict=True)
        return Alone(
            tokens,
            steps,
            elapsed,
            after.drafts_total - before.drafts_total,
            after.draft_tokens_total - before.draft_tokens_total,
            tuple(now - then for now, then in accepted),
        )

    def _add(self, prompt: Sequence[int], max_tokens: int) -> SequenceId:
        self._served += 1
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
        name = SequenceId(str(self._served))
        self._engine.add(SequenceSpec(name, tuple(prompt), sampling), self._clock.now())
        return name

    def _step(self) -> int:
        """One step. Returns: its tokens."""
        action = self._engine.next_action(self._clock.now())
        assert action.plan is not None, "the engine has nothing to do"
        self._engine.step_finished(self._executor.execute(action.plan), self._clock.now())
        return sum(len(event.tokens) for event in self._engine.take_events() if isinstance(event, Tokens))


class BareProcess:
    """A `BareEngine` in its own process; a context manager that ends it.

    Args:
        options: further arguments of `BareEngine`.
    """

    def __init__(self, model: Path, dtype: DType, threads: int, kv_tokens: int, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        settings = (model, dtype, threads, kv_tokens)
        environment = {"GOMP_SPINCOUNT": SPINS, "OMP_NUM_THREADS": str(threads)}  # OpenMP reads them when it is loaded
        with patch.dict(os.environ, environment):
            self._process = context.Process(target=_serve, args=(theirs, settings, options), daemon=True)
            self._process.start()

    def first_token_s(self, prompt: Sequence[int]) -> float:
        return float(self._call("first_token_s", prompt))

    def generate_s(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        return float(self._call("generate_s", prompts, max_tokens))

    def decode_tokens_per_s(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        return float(self._call("decode_tokens_per_s", prompts, steps))

    def decode_alone(self, prompt: Sequence[int], max_tokens: int) -> Alone:
        alone: Alone = self._call("decode_alone", prompt, max_tokens)
        return alone

    def _call(self, method: str, *arguments: object) -> Any:
        """Call the child. Raises: any exception of the child's engine, including those at its start."""
        self._pipe.send((method, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5.0)
        self._process.kill()


def _serve(pipe: Connection, settings: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Serve calls in the child until the pipe closes. A separate session gets the scheduler's share of one."""
    os.setsid()
    try:
        engine = BareEngine(*settings, **options)
    except Exception as error:  # for the parent to raise at its first call
        pipe.recv()
        pipe.send(error)
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(engine, method)(*arguments))
        except Exception as error:  # for the parent to raise
            pipe.send(error)
