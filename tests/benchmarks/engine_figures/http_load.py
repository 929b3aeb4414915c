"""The same closed load through the HTTP servers of all engines, one server at a time, in turns."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.conditions import ROOT, progress
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.engines import (
    SHORT_SPINS,
    EngineFailedError,
    thread_environment,
    vllm_environment,
)
from tests.benchmarks.engine_figures.goals import HTTP_CLIENTS
from tests.benchmarks.engine_figures.peers import Llama, Vllm, parse_loadgen
from tests.benchmarks.engine_figures.rounds import one_line
from tests.benchmarks.processes import end_all, tree
from tests.benchmarks.served import Served, Setup
from tests.e2e.server import free_port

_SEQUENCE_ROOM = 512  # tokens of one sequence in a peer's cache
_FIXED = "--input-len 160 --output-len 64 --prompt-kind ids --tokenizer none --no-scrape --no-report --quiet --json"

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
        command += ["--num-prompts", str(self.requests), "--num-warmups", str(HTTP_CLIENTS), *_FIXED.split()]
        command += ["--vocab-size", str(self.vocabulary), "--seed", str(self.seed)]
        return [*command, "--ready-check-timeout-sec", "300"]


def measure(openers: Mapping[str, OpenServer], load: Load, rounds: int, model: str, book: Book) -> None:
    """Start each server, load it, end it; all of that several times. A server that fails is noted as absent."""
    shape = Shape(model, "http", HTTP_CLIENTS)
    failed: set[str] = set()
    for number in range(rounds):
        turn = list(openers) if number % 2 == 0 else list(openers)[::-1]
        for name in (name for name in turn if name not in failed):
            progress(f"round {number + 1}/{rounds}: {HTTP_CLIENTS} clients against the server of {name}")
            try:
                with openers[name]() as url:
                    rate = run_load(load.command(url))
            except (AssertionError, OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
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
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=900.0)
    if not done.stdout.strip():
        raise EngineFailedError(f"loadgen: {done.stderr[-1000:]}")
    rate, outcomes = parse_loadgen(done.stdout)
    if set(outcomes) != {"ok"}:
        raise EngineFailedError(f"requests failed: {json.dumps(outcomes)}")
    return rate


@contextmanager
def our_server(model: Path, threads: int) -> Iterator[str]:
    """`cloudmatrix serve` with one aggregated instance on all cores; the whole system runs, gateway and Ray too."""
    with Served(Setup(model, mode="aggregated", threads=threads, dtype="bfloat16")) as served:
        yield served.url


@contextmanager
def command_server(command: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """A server that is one command, `{port}` in its place. It need not be ready yet: the load waits for it."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [part.format(port=port) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            time.sleep(1.0)
            yield f"http://127.0.0.1:{port}"
        except Exception as error:
            if process.poll() is None:
                raise
            log.seek(0)
            raise EngineFailedError(f"the server ended: {log.read()[-1500:]}") from error
        finally:
            below = tree(process.pid)
            process.terminate()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            end_all([pid for pid in below if pid != process.pid])


def llama_server(peer: Llama, gguf: Path, threads: int) -> AbstractContextManager[str]:
    """`llama-server` with a slot for every client, and no copies of prompts that never come again.

    Its threads share their cores with its own HTTP threads and with the load, hence the short spins: several times as
    fast as its default.
    """
    command = [str(peer.tool("llama-server")), "-m", str(gguf), "--port", "{port}", "-t", str(threads)]
    command += ["-tb", str(threads), "-np", str(HTTP_CLIENTS), "-c", str(HTTP_CLIENTS * _SEQUENCE_ROOM)]
    return command_server([*command, "--cache-ram", "0", *peer.flags], thread_environment(threads) | SHORT_SPINS)


def vllm_server(peer: Vllm, model: Path, threads: int) -> AbstractContextManager[str]:
    """vLLM's OpenAI server, as its manual starts it on a CPU."""
    command = [str(peer.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--port", "{port}", "--host", "127.0.0.1", "--dtype", "bfloat16", "--max-model-len", "4096"]
    command += ["--max-num-seqs", "64", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    cores = f"0-{threads - 1}" if threads > 1 else "0"
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}
    return command_server(command, thread_environment(threads) | vllm_environment(peer) | own)
