"""What the KV-cache pool costs when it never helps: throughput with a pool at 0 % hits, as a share of that without.

Two whole systems, alike but for `[kvcache]`, run at the same time and are loaded in turns, so that whatever else the
machine does falls on both alike. All prompts are new: every lookup misses, every full block is published. Two loads: a
mix of long prompts with short answers, and a chat-like one. Goal: at least 0.97.
"""

import argparse
import asyncio
import itertools
import time

from serving.model.config import read_architecture
from tests.benchmarks.bench_pool_ttft import total
from tests.benchmarks.bench_throughput import prompts
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.served import Served, Setup, together

GOAL = 0.97
LOADS = {"prompts of 256, answers of 64": (16, 256, 64), "prompts of 512, answers of 8": (16, 512, 8)}
"""Name -> streams, tokens of a prompt, tokens of an answer."""


def tokens_per_s(served: Served, batch: list[list[int]], output: int) -> float:
    """Prompt and output tokens per second of one batch, all streams at once."""
    begun = time.perf_counter()
    records = asyncio.run(together(served, batch, output))
    elapsed = time.perf_counter() - begun
    if any(record.status != 200 or record.first_at is None for record in records):
        raise RuntimeError("a stream failed")
    return sum(len(prompt) + output for prompt in batch) / elapsed


def in_turns(setups: tuple[Setup, Setup], args: argparse.Namespace) -> dict[str, tuple[list[float], list[float]]]:
    """Per load, tokens per second without and with the pool; the first round of each warms up."""
    vocab_size = read_architecture(setups[0].model).vocab_size
    found: dict[str, tuple[list[float], list[float]]] = {}
    seeds = itertools.count(1)
    with Served(setups[0]) as without, Served(setups[1]) as pooled:
        for name, (streams, prompt, output) in LOADS.items():
            sides: tuple[list[float], list[float]] = ([], [])
            for repeat in range(args.repeats + 1):
                order = (0, 1) if repeat % 2 else (1, 0)
                for side in order:
                    batch = prompts(streams, prompt, vocab_size, seed=next(seeds))
                    sides[side].append(tokens_per_s((without, pooled)[side], batch, output))
                    time.sleep(0.3)
                progress(f"{name}: {sides[0][-1]:.0f} without, {sides[1][-1]:.0f} with the pool")
            found[name] = (sides[0][1:], sides[1][1:])
        if total(pooled, "prompt_tokens_pulled_total"):
            raise RuntimeError("the pool helped: these prompts were not all new")
    return found


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_pool_overhead", __doc__, repeats=16)
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, threads=1, loads=str(LOADS))
        show_conditions(found)
        plain = Setup(model, threads=1)
        pooled = Setup(model, threads=1, memory_servers=1, memory_mib=1024)
        results = in_turns((plain, pooled), args)
    figures = []
    for name, (without, with_pool) in results.items():
        ratios = tuple(b / a for a, b in zip(without, with_pool, strict=True))
        figures += [
            Figure(f"{name}: without", "tokens/s", tuple(without)),
            Figure(f"{name}: with", "tokens/s", tuple(with_pool)),
            Figure(f"{name}: with / without", "", ratios, goal=GOAL, at_most=False),
        ]
    report("bench_pool_overhead", found, figures)


if __name__ == "__main__":
    main()
