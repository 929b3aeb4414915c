"""Output tokens per second through HTTP, as a share of the bare engine's.

Bare: the engine and its torch executor in one process. Served: the whole system, a raw client. Both generate exactly
128 tokens for each of the same 32 prompts of 64 tokens, all arriving at once, greedy. The bare engine has all cores;
the served instances share them less one, as shipped, since gateway, Ray and client run on the same cores. Bare and
served in turns, with new prompts in each turn, so that no prefix is reused. Goal: a ratio of at least 0.70.
"""

import argparse
import asyncio
import contextlib
import os
import random
import time

from serving.model.config import read_architecture
from tests.benchmarks.bare_engine import BareProcess
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

GOAL = 0.70
INSTANCES = {"disaggregated": 2, "aggregated": 1}
_FIRST_PLAIN_ID = 16  # special tokens come first


def prompts(count: int, tokens: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random prompts, different for each seed."""
    rng = random.Random(seed)
    return [[rng.randrange(_FIRST_PLAIN_ID, vocab_size) for _ in range(tokens)] for _ in range(count)]


def served_s(served: Served, batch: list[list[int]], max_tokens: int) -> float:
    """Time from the first request to the last stream's end [s]."""
    begun = time.perf_counter()
    records = asyncio.run(together(served, batch, max_tokens))
    elapsed = time.perf_counter() - begun
    failed = [record for record in records if record.status != 200 or record.first_at is None]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(batch)} streams failed, for example {failed[0]}")
    return elapsed


def in_turns(
    setup: Setup, bares: dict[int, BareProcess], args: argparse.Namespace
) -> tuple[dict[int, list[float]], list[float]]:
    """Tokens per second of each bare engine (by its threads) and of one served system, in turns."""
    tokens = args.streams * args.output
    vocab_size = read_architecture(setup.model).vocab_size
    alone: dict[int, list[float]] = {threads: [] for threads in bares}
    through: list[float] = []
    with Served(setup) as served:
        for repeat in range(-1, args.repeats):  # the first one warms up
            batch = prompts(args.streams, args.prompt, vocab_size, seed=repeat)
            for threads, bare in bares.items():
                alone[threads].append(tokens / bare.generate_s(batch, args.output))
            through.append(tokens / served_s(served, batch, args.output))
            rates = ", ".join(f"bare x{threads} {found[-1]:.0f}" for threads, found in alone.items())
            progress(f"{setup.mode}: {rates}, served {through[-1]:.0f} tokens/s")
    return {threads: found[1:] for threads, found in alone.items()}, through[1:]


def figures_of(setup: Setup, alone: dict[int, list[float]], through: list[float], total: int) -> list[Figure]:
    """Rows of one mode; the goal is about the bare engine with all threads."""
    found = [
        Figure(f"{setup.mode}: bare, {threads} threads", "tokens/s", tuple(rates)) for threads, rates in alone.items()
    ]
    found.append(Figure(f"{setup.mode}: served, {setup.threads} threads per instance", "tokens/s", tuple(through)))
    for threads, rates in alone.items():
        ratios = tuple(b / a for a, b in zip(rates, through, strict=True))
        goal = GOAL if threads == total else None
        found.append(
            Figure(f"{setup.mode}: served / bare with {threads} threads", "", ratios, goal=goal, at_most=False)
        )
    return found


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_throughput", __doc__, repeats=4)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens generated per stream")
    parser.add_argument("--modes", nargs="*", choices=tuple(INSTANCES), default=list(INSTANCES))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="compute threads in total")
    parser.add_argument("--threads-each", type=int, help="threads per served instance, instead of the share as shipped")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    with checkpoint(args.model) as model, contextlib.ExitStack() as stack:
        found = conditions(
            model,
            dtype=args.dtype,
            threads_in_total=args.threads,
            threads_per_instance=args.threads_each or "shared out",
            streams=args.streams,
            prompt_tokens=args.prompt,
            output_tokens=args.output,
        )
        show_conditions(found)
        room = args.streams * (args.prompt + args.output + 32) + 512
        bares = {
            threads: stack.enter_context(BareProcess(model, args.dtype, threads, room))
            for threads in sorted({1, args.threads})
        }
        figures: list[Figure] = []
        for mode in args.modes:
            threads = args.threads_each or max(1, (args.threads - 1) // INSTANCES[mode])
            setup = Setup(model, mode=mode, threads=threads, dtype=args.dtype)
            figures += figures_of(setup, *in_turns(setup, bares, args), total=args.threads)
        report("bench_throughput", found, figures)


if __name__ == "__main__":
    main()
