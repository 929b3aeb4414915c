"""The engines as the rounds use them: each in a separate process, measured for one shape at a time."""

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.benchmarks.bare_engine import SPINS, BareProcess, ExecutorKind
from tests.benchmarks.conditions import random_prompts
from tests.benchmarks.engine_figures.peers import BatchedBench, Llama, Vllm, parse_batched_bench

CONTEXT_TOKENS = 160
DECODE_STEPS = 32
MAX_BATCH = 32
MAX_PROMPT_TOKENS = 2048
_KV_TOKENS = MAX_BATCH * (CONTEXT_TOKENS + 2 * DECODE_STEPS + 64) + 2 * MAX_PROMPT_TOKENS
SHORT_SPINS = {"GOMP_SPINCOUNT": SPINS}
_ATTEMPTS = 8
"""llama.cpp prints from a thread of its own, which its exit does not wait for: now and then the result is lost."""


class EngineFailedError(RuntimeError):
    """Raised when an engine did not start, or died; the message ends with its last output."""


class Engine(Protocol):
    """One engine with one checkpoint. Rates are tokens per second."""

    def decode(self, batch: int) -> float:
        """`DECODE_STEPS` steps in which `batch` sequences decode, from `CONTEXT_TOKENS` tokens on."""
        ...

    def prefill(self, tokens: int) -> float:
        """One prompt of `tokens`, to its first token."""
        ...

    def close(self) -> None:
        """End its process."""
        ...


class OurEngine:
    """The bare engine of this project: scheduler, executor and sampler, no link and no HTTP.

    Args:
        options: further ones of `BareEngine`, such as `short` and `kv_dtype`.
    """

    def __init__(self, model: Path, executor: ExecutorKind, threads: int, **options: Any) -> None:
        self._seeds = itertools.count()
        self._vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        options |= {"executor": executor, "step_tokens": MAX_PROMPT_TOKENS}
        self._process = BareProcess(model, "bfloat16", threads, _KV_TOKENS, **options)
        self._process.__enter__()

    def decode(self, batch: int) -> float:
        prompts = random_prompts(batch, CONTEXT_TOKENS, self._vocabulary, next(self._seeds))
        return self._process.decode_tokens_per_s(prompts, DECODE_STEPS)

    def prefill(self, tokens: int) -> float:
        (prompt,) = random_prompts(1, tokens, self._vocabulary, next(self._seeds))
        return tokens / self._process.first_token_s(prompt)

    def close(self) -> None:
        self._process.__exit__(None, None, None)


class LlamaEngine:
    """`llama-batched-bench`, a process per measurement. Sequences of a batch share a prompt's text, not its cache.

    Every other measurement lets its threads spin as briefly as ours do: much better with other load on the machine, a
    little worse without. The figure is the best of both.
    """

    def __init__(self, peer: Llama, gguf: Path, threads: int) -> None:
        self._command = [str(peer.tool("llama-batched-bench")), "-m", str(gguf), "-t", str(threads)]
        self._command += ["-tb", str(threads), *peer.flags]
        always = thread_environment(threads)
        self._environments = itertools.cycle((always | SHORT_SPINS, always))

    def decode(self, batch: int) -> float:
        room = max(1, batch) * (CONTEXT_TOKENS + DECODE_STEPS + 32)
        shape = ["-c", str(room), "-npp", str(CONTEXT_TOKENS), "-ntg", str(DECODE_STEPS), "-npl", str(batch), "-pps"]
        return self._run(shape).decode_per_s

    def prefill(self, tokens: int) -> float:
        shape = ["-c", str(tokens + 64), "-b", str(tokens), "-npp", str(tokens), "-ntg", "1", "-npl", "1"]
        return self._run(shape).prompt_per_s

    def close(self) -> None:
        """Do nothing: no process runs between two measurements."""

    def _run(self, shape: Sequence[str]) -> BatchedBench:
        environment = next(self._environments)
        for _ in range(_ATTEMPTS):
            command = [*self._command, *shape]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600.0, env=environment)
            found = parse_batched_bench(done.stdout) or parse_batched_bench(done.stderr)
            if done.returncode == 0 and found:
                return found[-1]
        said = f"{done.stdout[-500:]} {done.stderr[-1000:]}".replace("\n", " / ")
        raise EngineFailedError(f"exit code {done.returncode}: {said}")


class VllmEngine:
    """vLLM's offline engine, behind `vllm_worker.py`."""

    def __init__(self, peer: Vllm, model: Path, threads: int) -> None:
        command = [str(peer.python), str(Path(__file__).with_name("vllm_worker.py"))]
        command += ["--model", str(model), "--threads", str(threads)]
        self._log = tempfile.TemporaryFile("w+")
        environment = thread_environment(threads) | vllm_environment(peer)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self._process = subprocess.Popen(command, text=True, bufsize=1, env=environment, **pipes)
        self.version: str = self._answer()["version"]

    def decode(self, batch: int) -> float:
        return self._ask({"do": "decode", "batch": batch, "context": CONTEXT_TOKENS, "steps": DECODE_STEPS})

    def prefill(self, tokens: int) -> float:
        return self._ask({"do": "prefill", "tokens": tokens})

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, order: dict[str, Any]) -> float:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin)
        rate: float = self._answer()["tokens_per_s"]
        return rate

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise EngineFailedError(f"vLLM ended:\n{self._log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def thread_environment(threads: int) -> dict[str, str]:
    """This process's environment with OpenMP limited to `threads`, without network access.

    Settings of our own model for oneDNN are removed.
    """
    ours = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"} | ours


def vllm_environment(peer: Vllm) -> dict[str, str]:
    """The environment that vLLM's manual requires: Intel's OpenMP, from the wheel's dependencies, loaded first.

    Its workers spin for 5 ms, as in vLLM's own server; 200 ms, their default, would take the
    cores from the engine that is measured next.
    """
    library = peer.python.parent.parent / "lib" / "libiomp5.so"
    return {"LD_PRELOAD": str(library), "KMP_BLOCKTIME": "5"} if library.exists() else {}


Open = Callable[[], Engine]
"""Starts an engine. Raises: EngineFailedError."""
