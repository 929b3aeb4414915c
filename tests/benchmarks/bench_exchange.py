"""Exchange between ranks: dispatch and combine against copying the same bytes, and against gloo's all_to_all.

Rows are INT8 with a scale, results float32, as experts with INT8 weights take and give them; nothing is computed, but
results are added. Copying is from and to the same places, adding included, with nothing to announce or to wait for.

own work    two ranks by one thread in turns, so nothing is ever waited for
with waits  a process a rank, as it is used
gloo        two all_to_all_single calls between two processes: rows of every choice there, results back

Each figure is the median of many exchanges, repeated in turns. Waiting needs a core a rank: on a busy machine only own
work means anything.
"""

import argparse
import multiprocessing
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from serving.model.native import build
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, progress, report, show_conditions

HEADERS = ROOT / "hardware" / "ub" / "native"
SOURCE = Path(__file__).parent / "exchange" / "exchange_bench.cpp"
LARGE, SMALL = (64, 1024, 8), (16, 256, 2)
"""Rows of a rank, width, experts of a row."""
GLOO_PAIRS = 50


def compile_bench(folder: Path) -> Path:
    """The program, for this very machine."""
    program = folder / "exchange_bench"
    build.build(program, build.find_compiler(), [SOURCE], ("-march=native", "-iquote", str(HEADERS)), {})
    return program


def ask(program: Path, *arguments: object) -> list[float]:
    """Microseconds that the program prints."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    return [float(word) for word in done.stdout.split()]


def gloo_rank(rank: int, meeting: str, pipe: Connection) -> None:
    """One of two processes: does what it is asked for until it is told None."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    while (sizes := pipe.recv()) is not None:
        rows, hidden, top_k = sizes
        there = torch.ones(rows * top_k, hidden + 4, dtype=torch.int8)
        back = torch.ones(rows * top_k, hidden)
        taken, given = torch.empty_like(there), torch.empty_like(back)
        times = []
        for _ in range(GLOO_PAIRS + 3):
            begun = time.perf_counter()
            distributed.all_to_all_single(taken, there)
            distributed.all_to_all_single(given, back)
            times.append(time.perf_counter() - begun)
        pipe.send(1e6 * statistics.median(times[3:]))
    distributed.destroy_process_group()


class Gloo:
    """Two processes that stand ready."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def pair_us(self, sizes: tuple[int, int, int]) -> float:
        """There and back, the slower rank's median [µs]."""
        for pipe in self._pipes:
            pipe.send(sizes)
        return max(pipe.recv() for pipe in self._pipes)


@contextmanager
def gloo(folder: Path) -> Iterator[Gloo]:
    """Starts the two, and ends them."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    with ExitStack() as stack:
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=gloo_rank, args=(rank, str(folder / "meeting"), theirs))
            process.start()
            stack.callback(process.kill)
            pipes.append(ours)
        yield Gloo(pipes)
        for pipe in pipes:
            pipe.send(None)


def measure(program: Path, others: Gloo, repeats: int) -> list[Figure]:
    """Everything, in turns."""
    own: list[float] = []
    waits: list[float] = []
    empty: dict[int, list[float]] = {2: [], 4: []}
    pairs: list[float] = []
    large: list[float] = []
    small: list[float] = []
    for repeat in range(repeats):
        progress(f"repeat {repeat + 1} of {repeats}")
        exchanged, copied = ask(program, "own", *LARGE)
        own.append(exchanged / copied)
        exchanged, copied, alone = ask(program, "together", 2, *LARGE)
        pairs.append(exchanged)
        waits.append(exchanged / copied)
        empty[2].append(alone)
        large.append(others.pair_us(LARGE) / exchanged)
        small.append(others.pair_us(SMALL) / ask(program, "together", 2, *SMALL)[0])
        empty[4].append(ask(program, "together", 4, *SMALL)[2])
    return [
        Figure("empty exchange, EP-2", "µs", tuple(empty[2]), goal=8),
        Figure("empty exchange, EP-4", "µs", tuple(empty[4]), goal=25),
        Figure("64 rows of 1,024, top-8, EP-2: pair", "µs", tuple(pairs)),
        Figure("own work / copying", "", tuple(own), goal=1.15),
        Figure("with waits / copying", "", tuple(waits), goal=1.4),
        Figure("gloo / ours, 64 rows of 1,024, top-8", "", tuple(large), goal=4, at_most=False),
        Figure("gloo / ours, 16 rows of 256, top-2", "", tuple(small), goal=8, at_most=False),
    ]


def main(args: argparse.Namespace) -> None:
    """Compile, measure, report."""
    found = conditions(None, large=LARGE, small=SMALL)
    show_conditions(found)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with gloo(folder) as others:
            figures = measure(compile_bench(folder), others, args.repeats)
    report("bench_exchange", found, figures)


if __name__ == "__main__":
    main(make_parser("bench_exchange", __doc__, repeats=9).parse_args())
