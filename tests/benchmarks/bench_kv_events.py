"""KV events: blocks published per second, and the engine's steps with events / without, in turns.

- Blocks from a ledger's thread to a subscriber in another process, with 16 token ids each; and only their hashes, as a
  memory server reports them.
- Steps of 32 sequences that decode in the loop that serves, one thread: 99th percentile and median, with a subscriber,
  and with events switched on but nobody listening. A step in 16 publishes 32 blocks.
"""

import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
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
LIMIT_S = 120.0


def _subscribe(endpoint: str, pipe: Connection) -> None:
    """Tell the number of blocks that came, whenever asked, until the pipe closes."""
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
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send(blocks)


class Published:
    """A publisher, and a subscriber in another process if wanted."""

    def __init__(self, listeners: int = 1) -> None:
        config = KvEventsConfig(
            enabled=True, endpoint=f"tcp://127.0.0.1:{any_free_port('127.0.0.1')}", replay="", max_waiting=1 << 30
        )
        self.publisher = EventPublisher(config, EventSource("bench", "model", BLOCK_TOKENS))
        self.publisher.start()
        self._pipes = []
        for _ in range(listeners):
            pipe, theirs = multiprocessing.Pipe()
            multiprocessing.Process(target=_subscribe, args=(config.endpoint, theirs), daemon=True).start()
            self._pipes.append(pipe)
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
        for pipe in self._pipes:
            pipe.close()
        self.publisher.stop()


def blocks_per_s(seed: int, *, tokens: bool) -> float:
    """Rate from the first change to the last block at the subscriber."""
    chance, published = random.Random(seed), Published()
    runs, parent = [], None
    for _ in range(BLOCKS // RUN):
        hashes = [BlockHash(chance.randbytes(16)) for _ in range(RUN)]
        ids = [chance.randrange(100_000) for _ in range(RUN * BLOCK_TOKENS)] if tokens else ()
        runs.append(BlocksStored(GPU if tokens else CPU, hashes, parent if tokens else None, ids))
        parent = hashes[-1]
    begun = time.perf_counter()
    for run in runs:
        published.publisher.changes.note(run)
    published.wait(lambda: published.blocks() == len(runs) * RUN)
    taken = time.perf_counter() - begun
    published.close()
    return len(runs) * RUN / taken


class TimedEngine(BareEngine):
    """An engine whose every step is timed."""

    def step_s(self, prompts: list[list[int]], steps: int, published: Published) -> tuple[list[float], list[float]]:
        """Times between the ends of steps in which all prompts decode [s], with events and without.

        Events are switched on and off every `WINDOW` steps, so that other load on the machine affects both sides alike.
        """
        pool, changes = self._engine.scheduler.blocks.pool, published.publisher.changes
        sequences = [self._add(prompt, steps + 100) for prompt in prompts]
        ends: list[float] = []
        begun: set[str] = set()
        enough = threading.Event()

        def told(news: list[LoopEvent]) -> None:
            begun.update(item.sequence_id for item in news if isinstance(item, Tokens))
            if len(begun) == len(sequences):
                ends.append(time.perf_counter())
                pool.changes = changes if len(ends) // WINDOW % 2 else None
            if len(ends) > steps:
                enough.set()

        loop = engine_loop(self._engine, self._executor, told)
        end_idle_workers()
        loop.start()
        assert enough.wait(LIMIT_S), "the engine died"
        loop.stop()
        for sequence in sequences:
            self._engine.cancel(sequence, self._clock.now())
        self._engine.take_events()
        pool.changes = None
        times = [end - begin for begin, end in pairwise(ends[: steps + 1])]
        sides: tuple[list[float], list[float]] = ([], [])
        for step, taken in enumerate(times):
            if step % WINDOW > 1:  # the first ones of a window may belong to the other side
                sides[(step + 1) // WINDOW % 2 == 0].append(taken)
        return sides


def ratios(model: Path, repeats: int) -> list[Figure]:
    """Steps with events / without."""
    vocabulary = read_architecture(model).vocab_size
    engine = TimedEngine(model, "float32", 1, SEQUENCES * (STEPS + 200))
    sides = {"subscriber": Published(), "no subscriber": Published(0)}
    found: dict[str, list[float]] = {}
    for turn in range(repeats):
        progress(f"steps, repeat {turn + 1} of {repeats}")
        prompts = random_prompts(SEQUENCES, 32, vocabulary, 1 + turn)
        for name, published in sides.items():
            on, off = engine.step_s(prompts, STEPS, published)
            for percent in (99, 50):
                high, low = (statistics.quantiles(one, n=100)[percent - 1] for one in (on, off))
                found.setdefault(f"step p{percent}, {name} / off", []).append(high / low)
    for published in sides.values():
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
            values = tuple(blocks_per_s(seed, tokens=tokens) for seed in range(3))
            figures.append(Figure(name, "1/s", values, 100_000.0, at_most=False))
        report("bench_kv_events", found, [*figures, *ratios(model, arguments.repeats)])


if __name__ == "__main__":
    main()
