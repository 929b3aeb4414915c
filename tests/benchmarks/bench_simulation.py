"""How fast is virtual time: a trace on one supernode and one core, and many requests on ten supernodes.

Every run is a process of its own: routing, prefix lookups in the KV-cache pool, handoffs, decode steps, time line.
Speed is virtual time divided by the process's own time, less that of a run of one request; a busy machine disturbs that
less than real time, which is printed too. In turns: with the modules that `cloudmatrix compile`
makes (here, if need be), and with the sources alone.

  python -m tests.benchmarks.bench_simulation --trace conversation_trace.jsonl
  python -m tests.benchmarks.bench_simulation --trace conversation_trace.jsonl --million

Without --trace a synthetic load of the same size is played. Traces: https://github.com/kvcache-ai/Mooncake.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, report, show_conditions

CONFIG = ROOT / "deploy" / "cloudmatrix384.toml"
SYNTHETIC = ["--poisson", "3.4", "--duration", "3540", "--prompt", "12035", "--output", "343", "--reuse", "0.36"]
SUPERNODES = 10
CLI = [sys.executable, "-m", "serving.cli"]


Run = tuple[float, float, float, dict[str, Any]]


def simulate(*flags: str) -> Run:
    """One run of the command. Returns: real seconds, processor seconds of all processes, peak GiB of one, its JSON."""
    command = [*CLI, "simulate", "--config", str(CONFIG), "--quiet", "--json", *flags]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result: dict[str, Any] = json.loads(done.stdout)
    return wall, cpu, after.ru_maxrss / 2**20, result


def _figures(way: str, runs: list[Run], idle: float, goal: float | None) -> list[Figure]:
    span: float = runs[0][3]["totals"]["end_s"]
    spent = [run[1] - idle for run in runs]
    return [
        Figure(f"one supernode, {way}", "x real time", tuple(span / cpu for cpu in spent), goal, at_most=False),
        Figure(f"{way}: processor time of it", "s", tuple(spent)),
        Figure(f"{way}: start-up: imports, configuration, trace", "s", (idle,)),
    ]


def main() -> int:
    """Measure and print."""
    parser = make_parser("bench_simulation", __doc__, 3)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake's conversation trace")
    parser.add_argument("--million", action="store_true", help="also play it 84 times on ten supernodes (minutes)")
    arguments = parser.parse_args()
    load = ["--trace", str(arguments.trace.resolve())] if arguments.trace else SYNTHETIC
    found = conditions(None, trace=arguments.trace.name if arguments.trace else "synthetic", config=CONFIG.name)
    show_conditions(found)
    subprocess.run([*CLI, "compile"], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
    ways: dict[str, list[str]] = {"compiled": [], "sources": ["--interpreted"]}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(arguments.repeats):
        for way, flags in ways.items():
            runs[way].append(simulate(*load, *flags))
    one = "--limit" if arguments.trace else "--stop"
    figures = []
    for way, flags in ways.items():
        idle = min(simulate(*load, *flags, one, "1")[1] for _ in range(2))
        figures += _figures(way, runs[way], idle, 1000 if way == "compiled" else None)
    if arguments.million:
        processes = len(os.sched_getaffinity(0))
        flags = ["--repeat", "84", "--rate", str(SUPERNODES)] if arguments.trace else []
        flags += ["--supernodes", str(SUPERNODES), "--processes", str(processes)]
        wall, cpu, peak, result = simulate(*load, *flags)
        print(f"{result['summary']['requests']:,} requests, {result['summary']['outcomes']}")
        figures += [
            Figure(f"1 M requests, {SUPERNODES} supernodes, {processes} processes", "s", (wall,), 300),
            Figure("the same, processor time", "s", (cpu,)),
            Figure("the same, largest process", "GiB", (peak,), 4),
        ]
    report("simulation", found, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
