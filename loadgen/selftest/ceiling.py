"""Streamed tokens per second that one core can receive, including all per-token work of a real run.

The client runs in this process on one core, the blast server in a process of its own. What counts is tokens per CPU
second of the client: it does not matter then whether the two had to share a core. Tokens per second of wall time are
the actual rate; they are lower when the server was the slower one.
"""

import asyncio
import contextlib
import gc
import os
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import msgspec
import uvloop

from loadgen.client import Digester, Keep, LoadClient, fill_record
from loadgen.endpoint import DEFAULT_PATHS, Backend, Endpoint
from loadgen.errors import LoadgenError
from loadgen.plan import Turn
from loadgen.record import RequestOutcome, RequestRecord

WARM_UP_S = 20.0
"""Time limit until every stream has had its first response; only then are as many tokens started as ended."""

BURST = 4
"""Tokens per write at maximum speed: with one per write the server would be the slower side."""
PROMPT = "what can this machine take in"
Ask = Callable[[int], Awaitable[int]]


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        streams: open at once. seconds: wall time measured. cpu_s: CPU time of the client in it.
        tokens: received, interpreted and written into records. requests: responses that they belong to.
        reads: how often the event loop delivered bytes. failed: incomplete responses.
    """

    streams: int
    seconds: float
    cpu_s: float
    tokens: int
    requests: int
    reads: int
    failed: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of wall time."""
        return self.tokens / self.seconds

    @property
    def tokens_per_cpu_s(self) -> float:
        """Tokens per second that one fully available core can receive: the ceiling."""
        return self.tokens / self.cpu_s

    @property
    def us_per_token(self) -> float:
        """CPU time of one token [us]."""
        return self.cpu_s / self.tokens * 1e6

    @property
    def tokens_per_read(self) -> float:
        """1 is the worst case: every token needs a separate read."""
        return self.tokens / self.reads


def measure_ceiling(
    *,
    seconds: float = 3.0,
    streams: int = 64,
    tokens_per_answer: int = 256,
    backend: Backend = Backend.CHAT,
    tokens_per_s: float | None = None,
) -> Ceiling:
    """Measure.

    Args:
        tokens_per_s: of each stream, all in lockstep as from an engine that decodes a batch: one token per read, the
            worst case (512 streams at 100/s show it well). None for maximum speed: the client is then always behind
            and finds many tokens in each read.
    Raises: LoadgenError if the server does not start.
    Effects: a server process for a while; this process is pinned to one core during the measurement, its garbage
        collector off.
    """
    mode, burst = ("blast", BURST) if tokens_per_s is None else ("paced", 1)
    with one_core() as (_, other):
        with start_blast_server(
            mode, burst=burst, tokens_per_s=tokens_per_s or 1.0, lockstep=True, core=other
        ) as server:
            endpoint = Endpoint(base_url=server.url, path=DEFAULT_PATHS[backend], model=server.model, backend=backend)
            measured = measure_client(endpoint, seconds=seconds, streams=streams, tokens_per_answer=tokens_per_answer)
            with no_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(measured)


class Streams:
    """Keeps a number of streams open without pause and measures their tokens.

    Any client can be measured this way: its handling of one response is a function.
    """

    def __init__(self, ask: Ask, *, streams: int, tokens_per_answer: int, reads: Callable[[], int] = lambda: 0) -> None:
        """Prepare.

        Args:
            ask: requests one response of this many tokens and returns the number received.
            reads: number of reads so far, if the client counts them.
        """
        self._ask = ask
        self._streams = streams
        self._tokens_per_answer = tokens_per_answer
        self._reads = reads
        self._warm = asyncio.Event()
        self._first_answers = 0
        self._tokens = self._requests = self._failed = 0

    async def measure(self, seconds: float) -> Ceiling:
        """Warm up, then count for so long."""
        tasks = [asyncio.create_task(self._stream(number)) for number in range(self._streams)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WARM_UP_S):
                await self._warm.wait()
        before = self._count()
        await asyncio.sleep(seconds)
        wall, cpu, tokens, requests, reads, failed = (b - a for a, b in zip(before, self._count(), strict=True))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return Ceiling(
            streams=self._streams,
            seconds=wall,
            cpu_s=cpu,
            tokens=int(tokens),
            requests=int(requests),
            reads=int(reads),
            failed=int(failed),
        )

    def _count(self) -> tuple[float, ...]:
        counts = self._tokens, self._requests, self._reads(), self._failed
        return time.monotonic(), time.process_time(), *counts

    async def _stream(self, number: int) -> None:
        """One response after the other; the first ones have different lengths, so that the streams end at any time."""
        tokens = 1 + self._tokens_per_answer * number // self._streams
        await self._answer(tokens)
        self._first_answers += 1
        if self._first_answers == self._streams:
            self._warm.set()
        while True:
            await self._answer(self._tokens_per_answer)

    async def _answer(self, tokens: int) -> None:
        came = await self._ask(tokens)
        self._requests += 1
        self._tokens += came
        self._failed += came != tokens


async def measure_client(endpoint: Endpoint, *, seconds: float, streams: int, tokens_per_answer: int) -> Ceiling:
    """All work of a real run on a response, up to its record."""
    client, digester = LoadClient(endpoint, t0=time.monotonic()), Digester()
    records: list[RequestRecord] = []

    async def ask(tokens: int) -> int:
        body = endpoint.body(Turn(prompt=PROMPT, output_tokens=tokens))
        exchange = await client.exchange(client.prepare(body, f"ceiling-{len(records)}"))
        found = await digester.digest(exchange, tokens)
        record = RequestRecord(index=len(records))
        fill_record(record, exchange, found, Keep())
        records.append(record)
        return (found.output_tokens or 0) if found.outcome is RequestOutcome.OK else 0

    open_streams = Streams(ask, streams=streams, tokens_per_answer=tokens_per_answer, reads=lambda: client.meter.reads)
    try:
        return await open_streams.measure(seconds)
    finally:
        await client.close()


@contextlib.contextmanager
def one_core() -> Iterator[tuple[int | None, int | None]]:
    """This process on one core; gives that one and another one, None where the system has no such thing."""
    if not hasattr(os, "sched_setaffinity"):
        yield None, None
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        yield cores[0], cores[-1] if len(cores) > 1 else None
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off, as worker processes do: a full collection would be a pause of its own."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# Starts the blast server as a process of its own, and surely ends it again.

START_S = 20.0
"""Patience with a busy machine; it takes a fifth of a second on an idle one."""


@dataclass(frozen=True, slots=True)
class BlastServer:
    """A running one. `pid` is its process, for measuring its CPU time or stopping it early."""

    url: str
    port: int
    pid: int
    model: str


@contextlib.contextmanager
def start_blast_server(
    mode: str = "blast",
    *,
    tokens_per_s: float = 50.0,
    ttft_s: float = 0.0,
    lockstep: bool = False,
    stall_at_s: float | None = None,
    stall_for_s: float = 2.0,
    slots: int | None = None,
    burst: int = 1,
    chunk_bytes: int = 250,
    api_key: str = "",
    model: str = "blast",
    core: int | None = None,
) -> Iterator[BlastServer]:
    """A blast server on a free port of this machine, until the context ends.

    Args: see `python -m loadgen.selftest.blast_server --help`; `core` pins it to one core.
    Raises: LoadgenError if it does not start.
    Effects: a child process, stopped on exit from the context; it also ends by itself when this process does.
    """
    options = [
        f"--mode={mode}",
        f"--tokens-per-s={tokens_per_s}",
        f"--ttft-s={ttft_s}",
        f"--stall-for-s={stall_for_s}",
        f"--burst={burst}",
        f"--chunk-bytes={chunk_bytes}",
        f"--model={model}",
    ]
    options += [f"--stall-at-s={stall_at_s}"] if stall_at_s is not None else []
    options += ["--lockstep"] if lockstep else []
    options += [f"--slots={slots}"] if slots is not None else []
    options += [f"--api-key={api_key}"] if api_key else []
    options += [f"--core={core}"] if core is not None else []
    command = [sys.executable, "-m", "loadgen.selftest.blast_server", "--port=0", "--end-with-stdin", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        port = _read_port(process)
        yield BlastServer(f"http://127.0.0.1:{port}", port, process.pid, model)
    finally:
        process.kill()  # it has no data to save
        process.communicate()


def _read_port(process: "subprocess.Popen[bytes]") -> int:
    """The first line of its output, in time.

    Raises: LoadgenError.
    """
    assert process.stdout is not None
    deadline = monotonic() + START_S
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))
        piece = process.stdout.read1() if ready else b""  # type: ignore[attr-defined] # a BufferedReader
        if not piece:
            raise LoadgenError(f"the built-in test server did not start within {START_S:g} s")
        line += piece
    return int(line)
