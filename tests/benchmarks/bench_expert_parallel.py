"""Decoding by a group of ranks against one process, on the same cores.

One process has a thread for each core. Of a group every rank is a process with one thread, holds its share of the
experts, and decodes its share of the sequences; the engine loop around each is the one that serves. All in turns: the
same prompts, tokens per second of all ranks together while everything decodes.
"""

import argparse
import contextlib
import os
from pathlib import Path

from serving.model.config import read_architecture
from tests.benchmarks.conditions import (
    STORYTELLER,
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    random_prompts,
    report,
    show_conditions,
)
from tests.benchmarks.steady_engine import SteadyProcesses

PROMPT, LONG_PROMPT = 32, 512
IDLE_S = 5.0
GOALS = {("large", 2, 16): 0.85, ("large", 2, 64): 0.9, ("large", 4, 16): 0.7, ("large", 4, 64): 0.8,
         ("storyteller", 2, 32): 0.8, ("storyteller", 4, 32): 0.6}  # fmt: skip


def measure(name: str, model: Path, batches: list[int], args: argparse.Namespace) -> list[Figure]:
    """One model: a process and groups, in turns."""
    vocab = read_architecture(model).vocab_size
    cores, room = os.cpu_count() or 1, max(batches) * 1024
    figures = []
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(SteadyProcesses(model, "bfloat16", cores, room))
        groups = {
            ranks: stack.enter_context(SteadyProcesses(model, "bfloat16", 1, room // ranks, ranks))
            for ranks in args.ranks
        }
        for batch in batches:
            alone: list[float] = []
            ratios: dict[int, list[float]] = {ranks: [] for ranks in groups}
            for repeat in range(args.repeats):
                batch_prompts = random_prompts(batch, PROMPT, vocab, repeat)
                alone.append(one.rate(batch_prompts, args.seconds))
                for ranks, group in groups.items():
                    ratios[ranks].append(group.rate(batch_prompts, args.seconds) / alone[-1])
                told = ", ".join(f"EP-{ranks} {found[-1]:.2f}" for ranks, found in ratios.items())
                progress(f"{name}, batch {batch}: one process {alone[-1]:,.0f} tokens/s; {told} of it")
            figures.append(Figure(f"{name}, batch {batch}: one process", "tokens/s", tuple(alone)))
            for ranks, found in ratios.items():
                label = f"{name}, batch {batch}: EP-{ranks} / one process"
                goal = GOALS.get((name, ranks, batch))
                figures.append(Figure(label, "", tuple(found), goal=goal, at_most=False))
        for ranks, group in groups.items():
            share = 100 * group.idle_cores(IDLE_S)
            figures.append(Figure(f"{name}: EP-{ranks} without work", "% of a core", (share,), goal=0.5))
    return figures


def beside_prompts(name: str, model: Path, args: argparse.Namespace) -> Figure:
    """Steps of an attention rank that decodes while another one computes prompts, with one expert rank."""
    vocab, ratios = read_architecture(model).vocab_size, []
    with SteadyProcesses(model, "bfloat16", 1, 64 * 1024, 2, 1) as group:
        for repeat in range(args.repeats):
            decoded = random_prompts(32, PROMPT, vocab, repeat)
            alone, _ = group.slow_step_s(decoded, (), args.seconds)
            beside, _ = group.slow_step_s(decoded, random_prompts(8, LONG_PROMPT, vocab, repeat), args.seconds)
            ratios.append(beside / alone)
    label = f"{name}, 2:1, batch 32: 99th percentile of a step beside prompts of {LONG_PROMPT} / alone"
    return Figure(label, "", tuple(ratios), goal=1.5)


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_expert_parallel", __doc__, repeats=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="sizes of groups (default 2 4)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate (default 2)")
    args = parser.parse_args()
    found = conditions(None, prompt_tokens=PROMPT, dtype="bfloat16", seconds=args.seconds)
    show_conditions(found)
    figures = measure("storyteller", STORYTELLER, [32], args)
    with checkpoint(args.model, kind="small", bundled=False) as model:
        figures += measure("large", model, [16, 64], args)
        figures.append(beside_prompts("large", model, args))
    report("bench_expert_parallel", found, figures)


if __name__ == "__main__":
    main()
