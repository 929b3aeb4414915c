"""The same closed load through the HTTP servers of all engines, one server at a time, in turns."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.benchmarks.conditions import ROOT, progress
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.engines import SHORT_SPINS, EngineFailedError, thread_environment, vllm_environment
from tests.benchmarks.engine_figures.goals import HTTP_CLIENTS
from tests.benchmarks.engine_figures.llama_output import parse_loadgen
from tests.benchmarks.engine_figures.peers import Llama, Vllm
from tests.benchmarks.engine_figures.rounds import one_line
from tests.benchmarks.processes import end_all, tree
from tests.benchmarks.served import Served, Setup, free_port

INPUT_TOKENS = 160
OUTPUT_TOKENS = 64
_SEQUENCE_ROOM = 512  # tokens of one sequence in a peer's cache
_START_S = 300
_LOAD_LIMIT_S = 900.0
_STOP_S = 20.0

OpenServer = Callable[[], AbstractContextManager[str]]
"""Starts a server; entering gives its base URL."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `HTTP_CLIENTS` clients, prompts as token ids, greedy, to the planned length.

    Args:
        vocabulary: ids that the model has.
        requests: measured, after as many as there are clients to warm up.
    """

    vocabulary: int
    requests: int
    seed: int

    def command(self, url: str) -> list[str]:
        """`loadgen run` with this load."""
        command = [sys.executable, "-m", "loadgen", "run", "--url", url, "--concurrency", str(HTTP_CLIENTS)]
        command += ["--num-prompts", str(self.requests), "--num-warmups", str(HTTP_CLIENTS)]
        command += ["--input-len", str(INPUT_TOKENS), "--output-len", str(OUTPUT_TOKENS), "--prompt-kind", "ids"]
        command += [
            "--tokenizer",
            "none",
            "--vocab-size",
            str(self.vocabulary),
            "--seed",
            str(self.seed),
            "--no-scrape",
            "--no-report",
        ]
        return [*command, "--ready-check-timeout-sec", str(_START_S), "--quiet", "--json"]


def measure(openers: Mapping[str, OpenServer], load: Load, rounds: int, model: str, book: Book) -> None:
    """Start each server, load it, end it; all of that several times.

    Effects: adds output tokens per second to `book`; a server that fails is noted there as absent.
    """
    shape = Shape(model, "http", HTTP_CLIENTS)
    failed: set[str] = set()
    for number in range(rounds):
        turn = list(openers) if number % 2 == 0 else list(openers)[::-1]
        for name in (name for name in turn if name not in failed):
            progress(f"round {number + 1}/{rounds}: {HTTP_CLIENTS} clients against the server of {name}")
            try:
                with openers[name]() as url:
                    rate = run_load(load.command(url))
            except (EngineFailedError, OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                failed.add(name)
                book.absent[name] = f"its server: {one_line(error)}"
                progress(f"{name}: {book.absent[name]}")
                continue
            book.add(name, shape, [rate])
            progress(f"{name}: {rate:,.0f} output tokens/s")


def run_load(command: Sequence[str]) -> float:
    """Output tokens per second of one run.

    Raises: EngineFailedError if the run or any request fails.
    """
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=_LOAD_LIMIT_S)
    if not done.stdout.strip():
        raise EngineFailedError(f"loadgen: {done.stderr[-1000:]}")
    rate, outcomes = parse_loadgen(done.stdout)
    if set(outcomes) != {"ok"}:
        raise EngineFailedError(f"requests failed: {json.dumps(outcomes)}")
    return rate


class OurServer(AbstractContextManager[str]):
    """`cloudmatrix serve` with one aggregated instance on all cores; the whole system runs, gateway and Ray too."""

    def __init__(self, model: Path, threads: int) -> None:
        self._served = Served(Setup(model, mode="aggregated", threads=threads, dtype="bfloat16"))

    def __enter__(self) -> str:
        self._served.__enter__()
        return f"http://127.0.0.1:{self._served.port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._served.__exit__(kind, error, trace)


class CommandServer(AbstractContextManager[str]):
    """A server that is one command; entering does not wait until it is ready, the load does.

    Args:
        command: with `{port}` where the port belongs.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._port = free_port()
        self._command = [part.format(port=self._port) for part in command]
        self._environment = environment
        self._log = tempfile.TemporaryFile("w+")

    def __enter__(self) -> str:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        time.sleep(1.0)
        if self._process.poll() is not None:
            raise EngineFailedError(f"the server ended: {self._said()}")
        return f"http://127.0.0.1:{self._port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = self._process.poll() is not None
        below = tree(self._process.pid) if not ended else []
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_all([pid for pid in below if pid != self._process.pid])
        if ended and error is not None:
            raise EngineFailedError(f"the server ended: {self._said()}") from error

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-1500:]


def llama_server(peer: Llama, gguf: Path, threads: int) -> CommandServer:
    """`llama-server` with a slot for every client, and no copies of prompts that never come again.

    Its threads share their cores with its own HTTP threads and with the load, hence the short spins: several times as
    fast as its default.
    """
    command = [str(peer.tool("llama-server")), "-m", str(gguf), "--port", "{port}", "-t", str(threads)]
    command += ["-tb", str(threads), "-np", str(HTTP_CLIENTS), "-c", str(HTTP_CLIENTS * _SEQUENCE_ROOM)]
    command += ["--cache-ram", "0", *peer.flags]
    return CommandServer(command, thread_environment(threads) | SHORT_SPINS)


def vllm_server(peer: Vllm, model: Path, threads: int) -> CommandServer:
    """vLLM's OpenAI server, as its manual starts it on a CPU."""
    command = [str(peer.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--port", "{port}", "--host", "127.0.0.1", "--dtype", "bfloat16", "--max-model-len", "4096"]
    command += ["--max-num-seqs", "64", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    cores = f"0-{threads - 1}" if threads > 1 else "0"
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}
    return CommandServer(command, thread_environment(threads) | vllm_environment(peer) | own)
