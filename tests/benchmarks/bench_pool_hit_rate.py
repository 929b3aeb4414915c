"""How much of a recorded trace does the KV-cache pool find again, and how much the same memory split up?

Plays a trace that Mooncake published (JSON lines with block hashes) in virtual time, through the real ring, the real
ledger of the memory servers and the real routers. Nothing is computed or copied: a prompt occupies its instance for its
uncached tokens divided by --tokens-per-s. Designs, all with the same memory in sum:

  pool             memory servers in one ring, prompts go where the least work waits (the peer-to-peer design)
  local, load      each instance has its own part, prompts go where the least work waits
  local, locality  each instance has its own part, prompts go where their prefix is, unless the queue is too long there

and then the eviction policies against each other, in the pool. Sizes are in percent of the trace's distinct blocks: at
100 % nothing would ever have to leave. `ideal` is a cache that holds everything and knows a prompt as soon as it
arrives; `endless` holds everything, but a prompt only once it is computed.

  python -m tests.benchmarks.bench_pool_hit_rate --trace conversation_trace.jsonl
  python -m tests.benchmarks.bench_pool_hit_rate --trace a.jsonl b.jsonl --only evictions --sizes 1 5 20

Traces: https://github.com/kvcache-ai/Mooncake, folder FAST25-release/traces.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadgen.errors import LoadgenError
from serving.gateway.core.locality import PrefixHistory
from tests.benchmarks.conditions import conditions, show_conditions
from tests.benchmarks.pool_trace.memories import InfiniteMemory, LocalMemory, Memory, PooledMemory, Rules
from tests.benchmarks.pool_trace.simulation import Outcome, Router, Simulation, by_load, by_locality
from tests.benchmarks.pool_trace.trace import Ideal, Request, ideal, read_trace

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
DESIGNS = ("pool", "local, load", "local, locality")
EVICTIONS = ("lru", "lfu", "fifo", "cost")


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a design, its memory in percent of the distinct blocks (None = endless), and who leaves first."""

    design: str
    size: float | None
    eviction: str = "lru"


def build(case: Case, unique_blocks: int, instances: int, water: Sequence[float]) -> tuple[Memory, Router]:
    """Memory and router of a case."""
    rules = Rules(case.eviction, *water)
    if case.size is None:
        return InfiniteMemory(), by_load
    blocks = max(instances, round(unique_blocks * case.size / 100))
    if case.design == "pool":
        return PooledMemory(instances, blocks, rules), by_load
    memory = LocalMemory(instances, blocks, rules)
    if case.design == "local, load":
        return memory, by_load
    return memory, by_locality(PrefixHistory(blocks // instances))


def cases(only: str | None, sizes: Sequence[float]) -> Iterator[Case]:
    """All runs of one trace, each once."""
    yield Case("endless", None)
    if only != "evictions":
        yield from (Case(design, size) for size in sizes for design in DESIGNS)
    if only != "designs":
        names = EVICTIONS if only == "evictions" else EVICTIONS[1:]
        yield from (Case("pool", size, name) for size in sizes for name in names)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def plain(outcome: Outcome) -> dict[str, float]:
    """The figures of a run."""
    return {
        "block_hit_rate": outcome.block_hit_rate,
        "token_hit_rate": outcome.token_hit_rate,
        "wait_mean_s": statistics.fmean(outcome.waits_s),
        "wait_p99_s": percentile(outcome.waits_s, 0.99),
        "ttft_mean_s": statistics.fmean(outcome.ttfts_s),
        "imbalance": outcome.imbalance,
    }


def play(
    requests: Sequence[Request], best: Ideal, options: argparse.Namespace, name: str
) -> dict[Case, dict[str, Any]]:
    """All runs of one trace."""
    todo = list(cases(options.only, options.sizes))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found: dict[Case, dict[str, Any]] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(todo) * len(requests))
        for case in todo:
            progress.update(bar, description=f"{name}: {case.design}, {case.size or 'all'} %, {case.eviction}")
            memory, router = build(case, best.unique_blocks, options.instances, options.water)
            simulation = Simulation(memory, router, options.instances, options.tokens_per_s)
            found[case] = plain(simulation.run(requests, lambda count: progress.advance(bar, count)))
    return found


def show_designs(found: dict[Case, dict[str, Any]], best: Ideal, sizes: Sequence[float]) -> None:
    """The table of designs."""
    print(
        f"{'memory':>8} {'design':<16}{'hits: blocks':>13}{'tokens':>9}{'wait mean':>12}{'p99':>9}{'work max/mean':>15}"
    )
    ideal_row = f"{'':>8} {'ideal':<16}{best.block_share:>12.1%}{best.token_share:>10.1%}"
    rows = [(case, found[case]) for size in sizes for case in (Case(design, size) for design in DESIGNS)]
    print(ideal_row)
    for case, row in [(Case("endless", None), found[Case("endless", None)]), *rows]:
        size = "" if case.size is None else f"{case.size:g} %"
        print(
            f"{size:>8} {case.design:<16}{row['block_hit_rate']:>12.1%}{row['token_hit_rate']:>10.1%}"
            f"{row['wait_mean_s']:>10.2f} s{row['wait_p99_s']:>7.1f} s{row['imbalance']:>14.2f}"
        )


def show_evictions(found: dict[Case, dict[str, Any]], sizes: Sequence[float]) -> None:
    """The table of eviction policies: hit rates in blocks."""
    print(f"{'memory':>8}" + "".join(f"{name:>10}" for name in EVICTIONS) + "   (pool, hits in blocks)")
    for size in sizes:
        rates = [found[Case("pool", size, name)]["block_hit_rate"] for name in EVICTIONS]
        print(f"{size:>6g} %" + "".join(f"{rate:>10.1%}" for rate in rates))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_pool_hit_rate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The last line of the output is one JSON object with conditions and figures.",
    )
    parser.add_argument("--trace", type=Path, nargs="+", metavar="FILE", help="traces to play, one after the other")
    parser.add_argument("--instances", type=int, default=8, help="prefill instances = memory servers (default 8)")
    parser.add_argument(
        "--sizes",
        type=float,
        nargs="+",
        default=SIZES,
        metavar="PERCENT",
        help="memory in sum (default 1 2 5 10 20 50)",
    )
    parser.add_argument(
        "--tokens-per-s", type=float, default=6000.0, help="uncached tokens that an instance computes (default 6000)"
    )
    parser.add_argument(
        "--water",
        type=float,
        nargs=2,
        default=(0.95, 0.85),
        metavar=("HIGH", "LOW"),
        help="fill at which blocks begin and stop to leave (default 0.95 0.85)",
    )
    parser.add_argument("--speed", type=float, default=1.0, help="play the trace so many times faster (default 1)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--only", choices=("designs", "evictions"), help="one of the two comparisons")
    options = parser.parse_args(arguments)
    if min(*options.sizes, options.instances, options.tokens_per_s, options.speed, options.limit or 1) <= 0:
        parser.error("sizes, instances, speeds and limit must be above 0")
    if not 0 <= options.water[1] <= options.water[0] <= 1 or options.water[0] == 0:
        parser.error("--water must be two shares, the higher one first")
    return options


def compare(name: str, requests: Sequence[Request], options: argparse.Namespace) -> dict[str, Any]:
    """Play one trace in all designs and print its tables; returns the figures."""
    best = ideal(requests)
    found = play(requests, best, options, name)
    asked = sum(request.tokens for request in requests) / max(1e-9, requests[-1].arrival_s)
    print(
        f"{name}: {len(requests)} requests, {best.unique_blocks} distinct blocks, {asked:.0f} prompt tokens/s "
        f"= {asked / options.instances / options.tokens_per_s:.0%} of all instances' speed without a cache"
    )
    if options.only != "evictions":
        show_designs(found, best, options.sizes)
    if options.only != "designs":
        show_evictions(found, options.sizes)
    print(flush=True)
    return {
        "ideal_block_hit_rate": best.block_share,
        "ideal_token_hit_rate": best.token_share,
        "runs": [{"design": c.design, "size": c.size, "eviction": c.eviction} | row for c, row in found.items()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print."""
    options = parse(arguments)
    if not options.trace:
        print("no trace given (--trace FILE, see --help): nothing to play")
        return 0
    try:
        traces = {path.stem: read_trace(path, options.speed, options.limit) for path in options.trace}
    except LoadgenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    settings = {name: getattr(options, name) for name in ("instances", "tokens_per_s", "water", "speed")}
    show_conditions(about := conditions(None, **settings, block="512 tokens"))
    figures = {name: compare(name, requests, options) for name, requests in traces.items()}
    print(json.dumps({"benchmark": "bench_pool_hit_rate", "conditions": about, "figures": figures}, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
