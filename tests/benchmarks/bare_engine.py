"""The engine with nothing around it: one process, one thread of control, no link, no gateway, no HTTP.

It has a process of its own, as served instances do, in which OpenMP's workers look out for work for some microseconds
and then sleep: spinning on, they would take the cores from whatever is measured in turns with them; sleeping at once,
they would halve the speed of several threads.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch

from serving.engine.engine import InstanceEngine
from serving.engine.events import TokensEvent
from serving.engine.settings import EngineRole, EngineSettings
from serving.engine.torch_executor import TorchExecutor
from serving.ids import SequenceId
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.policy.request import SamplingParams, SequenceSpec
from serving.runtime.allocator import keep_freed_memory

BLOCK_TOKENS = 16
SPINS = "2000"
DType = Literal["float32", "bfloat16"]


class BareEngine:
    """An aggregated engine over `TorchExecutor`, with the settings that served instances have by default.

    Args:
        kv_tokens: room in the KV cache.
        threads: of torch, for the whole process.
    """

    def __init__(self, model: Path, dtype: DType, threads: int, kv_tokens: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        loaded = load_model(model, dtype=dtype)
        blocks = -(-kv_tokens // BLOCK_TOKENS)
        self._executor = TorchExecutor(loaded, KvCache(loaded.config, blocks, BLOCK_TOKENS, loaded.dtype))
        settings = EngineSettings(
            role=EngineRole.AGGREGATED,
            block_tokens=BLOCK_TOKENS,
            max_sequences=64,
            max_model_len=loaded.config.max_position_embeddings,
        )
        self._engine = InstanceEngine(settings, blocks)
        self._served = 0

    def first_token_s(self, prompt: Sequence[int]) -> float:
        """Time from a prompt's arrival to its first token [s]; the sequence ends there."""
        begun = time.perf_counter()
        sequence = self._add(prompt, 2)
        while not self._step():
            pass
        elapsed = time.perf_counter() - begun
        self._engine.cancel(sequence, time.perf_counter())
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

    def _add(self, prompt: Sequence[int], max_tokens: int) -> SequenceId:
        self._served += 1
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
        name = SequenceId(str(self._served))
        self._engine.add(SequenceSpec(name, tuple(prompt), sampling), time.perf_counter())
        return name

    def _step(self) -> int:
        """One step. Returns: tokens that it gave."""
        action = self._engine.next_action(time.perf_counter())
        assert action.plan is not None, "the engine has nothing to do"
        self._engine.step_finished(self._executor.execute(action.plan), time.perf_counter())
        return sum(len(e.tokens) for e in self._engine.take_events() if isinstance(e, TokensEvent))


class BareProcess:
    """A `BareEngine` in its own process; a context manager that ends it.

    Args:
        model, dtype, threads, kv_tokens: as for `BareEngine`.
    """

    def __init__(self, model: Path, dtype: DType, threads: int, kv_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, model, dtype, threads, kv_tokens)
        before = os.environ.get("GOMP_SPINCOUNT")
        os.environ["GOMP_SPINCOUNT"] = SPINS  # OpenMP reads it when the new process loads it
        try:
            self._process = context.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
        finally:
            del os.environ["GOMP_SPINCOUNT"]
            if before is not None:
                os.environ["GOMP_SPINCOUNT"] = before

    def first_token_s(self, prompt: Sequence[int]) -> float:
        """As `BareEngine.first_token_s`."""
        return self._call("first_token_s", prompt)

    def generate_s(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """As `BareEngine.generate_s`."""
        return self._call("generate_s", prompts, max_tokens)

    def _call(self, method: str, *arguments: object) -> float:
        self._pipe.send((method, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        seconds: float = answer
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(5.0)
        self._process.kill()


def _serve(pipe: Connection, model: Path, dtype: DType, threads: int, kv_tokens: int) -> None:
    """The child: answers calls until the pipe closes. A session of its own gets the scheduler's share of one."""
    os.setsid()
    engine = BareEngine(model, dtype, threads, kv_tokens)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(engine, method)(*arguments))
        except Exception as error:  # for the parent to raise
            pipe.send(error)
