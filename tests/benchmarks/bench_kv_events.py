"""KV events: blocks published per second, and the engine's steps with events / without, in turns.

- Blocks from a ledger's thread to a subscriber in another process, with 16 token ids each; and only their hashes, as a
  memory server reports them. Per CPU second: without the subscriber's process.
- Steps of 32 sequences that decode in the loop that serves, one thread: 99th percentile and median, with a subscriber,
  and with events switched on but nobody listening. A step in 16 publishes 32 blocks. `nothing / off` is the same
  measurement without any publisher: what it is away from 1 is the noise of the machine. `CPU` is the time of the
  loop's thread, which load of the machine affects less; `process CPU` includes the thread that publishes.
"""

import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise, product
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from serving.config.kv_events import KvEventsConfig
from serving.ids import BlockHash
from serving.instance.live.compute_model import end_idle_workers
from serving.instance.live.engine_news import LoopEvent
from serving.kvevents.live.publisher import EventPublisher, EventSource
from serving.launch.machine import any_free_port
from serving.model.config import read_architecture
from serving.values.kv_changes import CPU, GPU, BlocksStored
from serving.values.news import Tokens
from tests.benchmarks.bare_engine import BLOCK_TOKENS, BareEngine, engine_loop
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    random_prompts,
    report,
    show_conditions,
)
from tests.kvevents.subscriber import unpacked

SEQUENCES, STEPS, WINDOW, RUN = 32, 1000, 32, 64
BLOCKS = 200_000
LIMIT_S = 300.0
Step = tuple[float, float, float]
"""A step's time [s] by each of the clocks."""
CLOCKS = ("", " CPU", " process CPU")


def _subscribe(endpoint: str, pipe: Connection) -> None:
    """Tell the number of blocks that came, whenever asked."""
    socket = zmq.Context().socket(zmq.SUB)
    socket.set_hwm(0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    blocks = 0
    while True:
        if socket.poll(20):
            events = unpacked(socket.recv_multipart()[2])[1]
            blocks += sum(len(event.get("block_hashes", ())) for event in events)
        if pipe.poll():
            pipe.recv()
            pipe.send(blocks)


class Published:
    """A publisher, and a subscriber in another process if wanted."""

    def __init__(self, listeners: int = 1) -> None:
        config = KvEventsConfig(
            enabled=True, endpoint=f"tcp://127.0.0.1:{any_free_port('127.0.0.1')}", replay="", max_waiting=1 << 30
        )
        self.publisher = EventPublisher(config, EventSource("bench", "model", BLOCK_TOKENS))
        self.publisher.start()
        self._pipes, self._processes = list[Connection](), list[multiprocessing.Process]()
        for _ in range(listeners):
            pipe, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_subscribe, args=(config.endpoint, theirs), daemon=True)
            process.start()
            self._pipes.append(pipe)
            self._processes.append(process)
        self.wait(lambda: self.publisher.facts()["listeners"] == listeners)

    def blocks(self) -> int:
        """That have come to the subscriber."""
        self._pipes[0].send(None)
        return int(self._pipes[0].recv())

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.002)

    def close(self) -> None:
        """End both."""
        for process in self._processes:  # forked ones have both ends of the pipes, and so would see no end of theirs
            process.terminate()
            process.join()
        self.publisher.stop()


def blocks_per_s(seed: int, *, tokens: bool) -> tuple[float, float]:
    """Rate from the first change to the last block at the subscriber, and blocks per CPU second of this process."""
    chance, published = random.Random(seed), Published()
    runs, parent = [], None
    for _ in range(BLOCKS // RUN):
        hashes = [BlockHash(chance.randbytes(16)) for _ in range(RUN)]
        ids = [chance.randrange(100_000) for _ in range(RUN * BLOCK_TOKENS)] if tokens else ()
        runs.append(BlocksStored(GPU if tokens else CPU, hashes, parent if tokens else None, ids))
        parent = hashes[-1]
    begun, cpu = time.perf_counter(), time.process_time()
    for run in runs:
        published.publisher.changes.note(run)
    published.wait(lambda: published.blocks() == len(runs) * RUN)
    taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
    published.close()
    return len(runs) * RUN / taken, len(runs) * RUN / cpu


class TimedEngine(BareEngine):
    """An engine whose every step is timed."""

    def step_s(
        self, prompts: list[list[int]], steps: int, published: Published | None
    ) -> tuple[list[Step], list[Step]]:
        """Times between the ends of steps in which all prompts decode [s], with events and without.

        Events are switched on and off every `WINDOW` steps, so that other load on the machine affects both sides alike.
        """
        pool = self._engine.scheduler.blocks.pool
        changes = None if published is None else published.publisher.changes
        sequences = [self._add(prompt, steps + 100) for prompt in prompts]
        ends: list[Step] = []
        begun: set[str] = set()
        enough = threading.Event()

        def told(news: list[LoopEvent]) -> None:
            begun.update(item.sequence_id for item in news if isinstance(item, Tokens))
            if len(begun) == len(sequences):
                ends.append((time.perf_counter(), time.thread_time(), time.process_time()))
                pool.changes = changes if len(ends) // WINDOW % 2 else None
            if len(ends) > steps:
                enough.set()

        loop = engine_loop(self._engine, self._executor, told)
        end_idle_workers()
        loop.start()
        assert enough.wait(LIMIT_S), "the engine died, or the machine is too busy"
        loop.stop()
        for sequence in sequences:
            self._engine.cancel(sequence, self._clock.now())
        self._engine.take_events()
        pool.changes = None
        times = [(e[0] - b[0], e[1] - b[1], e[2] - b[2]) for b, e in pairwise(ends[: steps + 1])]
        sides: tuple[list[Step], list[Step]] = ([], [])
        for step, taken in enumerate(times):
            if step % WINDOW > 1:  # the first ones of a window may belong to the other side
                sides[(step + 1) // WINDOW % 2 == 0].append(taken)
        return sides


def ratios(model: Path, repeats: int) -> list[Figure]:
    """Steps with events / without."""
    vocabulary = read_architecture(model).vocab_size
    engine = TimedEngine(model, "float32", 1, SEQUENCES * (STEPS + 200))
    sides = {"subscriber": Published(), "no subscriber": Published(0), "nothing": None}
    found: dict[str, list[float]] = {}
    for turn in range(repeats):
        progress(f"steps, repeat {turn + 1} of {repeats}")
        prompts = random_prompts(SEQUENCES, 32, vocabulary, 1 + turn)
        for name, published in sides.items():
            on, off = engine.step_s(prompts, STEPS, published)
            for clock, percent in product(range(len(CLOCKS)), (99, 50)):
                high, low = (
                    statistics.quantiles([step[clock] for step in one], n=100)[percent - 1] for one in (on, off)
                )
                found.setdefault(f"step{CLOCKS[clock]} p{percent}, {name} / off", []).append(high / low)
    for published in sides.values():
        if published is not None:
            published.close()
    goals = {"step p99, subscriber / off": 1.01}
    return [Figure(name, "", tuple(values), goals.get(name), at_most=True) for name, values in found.items()]


def main() -> None:
    arguments = make_parser("bench_kv_events", __doc__, 8).parse_args()
    with checkpoint(arguments.model) as model:
        found = conditions(model, sequences=SEQUENCES, steps=STEPS, blocks=BLOCKS)
        show_conditions(found)
        figures = []
        for name, tokens in (("blocks/s with tokens", True), ("blocks/s, hashes only", False)):
            progress(name)
            rates, per_cpu = zip(*(blocks_per_s(seed, tokens=tokens) for seed in range(3)), strict=True)
            figures.append(Figure(name, "1/s", rates, 100_000.0, at_most=False))
            figures.append(Figure(name.replace("/s", " per CPU second"), "1/s", per_cpu))
        report("bench_kv_events", found, [*figures, *ratios(model, arguments.repeats)])


if __name__ == "__main__":
    main()
