"""Exchange between ranks: dispatch and combine against copying the same bytes.

Rows are INT8 with a scale, results float32, as experts with INT8 weights take and give them; nothing is computed, but
results are added. Copying is from and to the same places, adding included, with nothing to ask or to wait for.

own work    two ranks by one thread in turns, so nothing is ever waited for
with waits  a process a rank, as it is used
with sleep  ranks that wait sleep after 2 µs

Each figure is the median of many exchanges, repeated in turns. Waiting needs a core a rank: on a busy machine only own
work means anything.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from serving.model.native import build
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, progress, report, show_conditions

HEADERS = ROOT / "hardware" / "ub" / "native"
SOURCE = Path(__file__).parent / "exchange" / "exchange_bench.cpp"
LARGE, SMALL = (64, 1024, 8), (16, 256, 2)
"""Rows of a rank, width, experts of a row."""


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


def measure(program: Path, repeats: int) -> list[Figure]:
    """All measurements, in turns."""
    found: dict[str, list[float]] = {name: [] for name in ("own", "waits", "EP-2", "EP-4", "1:1", "large", "small")}
    for repeat in range(repeats):
        progress(f"repeat {repeat + 1} of {repeats}")
        exchanged, copied = ask(program, "own", *LARGE)
        found["own"].append(exchanged / copied)
        exchanged, copied, one_each = ask(program, "together", 2, *LARGE)
        found["large"].append(exchanged)
        found["waits"].append(exchanged / copied)
        found["EP-2"].append(one_each)
        found["small"].append(ask(program, "together", 2, *SMALL)[0])
        found["1:1"].append(ask(program, "split", SMALL[1])[0])
        found["EP-4"].append(ask(program, "together", 4, *SMALL)[2])
    return [
        Figure("one row to each rank and back, EP-2", "µs", tuple(found["EP-2"]), goal=12),
        Figure("one row to each rank and back, EP-4", "µs", tuple(found["EP-4"])),
        Figure("one row and back, 1:1, with sleep", "µs", tuple(found["1:1"]), goal=12),
        Figure("64 rows of 1,024, top-8, EP-2: pair", "µs", tuple(found["large"])),
        Figure("16 rows of 256, top-2, EP-2: pair", "µs", tuple(found["small"])),
        Figure("own work / copying", "", tuple(found["own"]), goal=1.15),
        Figure("with waits / copying", "", tuple(found["waits"]), goal=1.4),
    ]


def main(args: argparse.Namespace) -> None:
    """Compile, measure, report."""
    found = conditions(None, large=LARGE, small=SMALL)
    show_conditions(found)
    with tempfile.TemporaryDirectory() as name:
        figures = measure(compile_bench(Path(name)), args.repeats)
    report("bench_exchange", found, figures)


if __name__ == "__main__":
    main(make_parser("bench_exchange", __doc__, repeats=9).parse_args())
