"""Gain from drafting with the multi-token-prediction layer: one sequence of the demo model, greedy.

Prompts are the starts of stories that the model was never trained on; for each one, every k decodes the same number of
tokens, in turns, so that other load on the machine affects all alike.
"""

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tests.benchmarks.bare_engine import Alone, BareProcess, ExecutorKind
from tests.benchmarks.conditions import STORYTELLER, progress
from tests.benchmarks.engine_figures.goals import SPECULATION, Row

PROMPT_TOKENS = 40
OUTPUT_TOKENS = 128  # with the prompt still inside one story, most of which have some 200 tokens
DRAFTS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Speed:
    """Result of one k over all prompts, of the fastest repeat of each.

    Args:
        k: most draft tokens of a step; the engine makes fewer if they do not pay.
        accepted: share of the verified draft tokens that were accepted.
        by_position: accepted draft tokens per verification, first one first.
    """

    k: int
    tokens_per_s: float
    tokens_per_step: float
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()

    def __str__(self) -> str:
        said = f"k = {self.k}: {self.tokens_per_s:,.0f}/s, {self.tokens_per_step:.2f} tokens a step"
        positions = " / ".join(f"{share:.0%}" for share in self.by_position)
        return said if not self.k else f"{said}, {self.accepted:.0%} of guesses right ({positions} by position)"


def held_out_stories(data: Path) -> list[str]:
    """Stories that the demo model was not trained on, by the rule of its training; `data` has `tinystories/`."""
    spec = importlib.util.spec_from_file_location("storyteller_corpus", STORYTELLER / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    corpus = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = corpus  # its dataclasses look up their module
    spec.loader.exec_module(corpus)
    _, held_out = corpus.load_stories(data / "tinystories" / "tinystories_merged.txt")
    return list(held_out)


def measure(stories: Sequence[str], executor: ExecutorKind, threads: int, prompts: int, repeats: int) -> list[Speed]:
    """Decode alone, for every k."""
    tokenizer = Tokenizer.from_file(str(STORYTELLER / "tokenizer.json"))
    ids = (tokenizer.encode(text).ids for text in stories)
    beginnings = [found[:PROMPT_TOKENS] for found in ids if len(found) >= PROMPT_TOKENS][:prompts]
    with ExitStack() as stack:
        engines = {
            k: stack.enter_context(BareProcess(STORYTELLER, "bfloat16", threads, 1024, executor=executor, drafts=k))
            for k in DRAFTS
        }
        found: dict[int, list[list[Alone]]] = {k: [] for k in DRAFTS}
        for number, prompt in enumerate(beginnings):
            for k, engine in engines.items():
                found[k].append([engine.decode_alone(prompt, OUTPUT_TOKENS) for _ in range(repeats)])
            progress(f"speculation: prompt {number + 1}/{len(beginnings)}")
    return [sum_up(k, runs) for k, runs in found.items()]


def sum_up(k: int, runs: Sequence[Sequence[Alone]]) -> Speed:
    """The speed over several prompts, each with its repeats."""
    fastest = [min(repeats, key=lambda run: run.seconds / run.tokens) for repeats in runs]
    tokens, steps = sum(run.tokens for run in fastest), sum(run.steps for run in fastest)
    rate = tokens / sum(run.seconds for run in fastest)
    verified, drafted = sum(run.verified for run in fastest), sum(run.drafted for run in fastest)
    accepted = [sum(counts) for counts in zip(*(run.accepted for run in fastest), strict=True)]
    by_position = tuple(count / max(1, verified) for count in accepted)
    return Speed(k, rate, tokens / steps, sum(accepted) / max(1, drafted), by_position)


def speculation_row(speeds: Sequence[Speed]) -> Row:
    """The best k against k = 0, which must be among them."""
    plain = next(speed for speed in speeds if speed.k == 0)
    best = max((speed for speed in speeds if speed.k > 0), key=lambda speed: speed.tokens_per_s)
    return Row(SPECULATION, best.tokens_per_s / plain.tokens_per_s, "; ".join(map(str, speeds)))
