"""The workload of the comparison, as a Mooncake trace that both sides read.

Conversations as in the published trace: a turn's prompt is that of the turn before, its response, and a few words more,
so that leading blocks repeat. Gaps between arrivals are gamma distributed: Poisson, or burstier. All follows from the
seed.
"""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from loadgen.trace.mooncake import MOONCAKE_BLOCK_TOKENS as BLOCK_TOKENS

MEDIAN_NEW_TOKENS = 2500
SPREAD = 1.1
"""Standard deviation of the logarithm of new tokens; with the longest prompt and `FOLLOW` this makes prompts of 5,500
tokens on average, of which 1,000 are known already."""
FOLLOW = 0.4
"""Share of requests that continue a conversation, if its context has space."""
MEDIAN_ANSWER_TOKENS, ANSWER_SPREAD = 48, 0.7
LEAST_TOKENS, LEAST_ANSWER_TOKENS = 64, 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of a trace.

    Args:
        rate: requests per second, in virtual time.
        most_prompt, most_answer: longest prompt and response [tokens]; longer ones are cut.
        burstiness: shape of the gaps' gamma distribution; 1 = Poisson, below 1 = bursts.
    """

    requests: int
    rate: float
    most_prompt: int
    most_answer: int
    seed: int
    burstiness: float = 1.0


def write_made(path: Path, shape: Shape) -> None:
    """Write a synthetic trace."""
    rng = random.Random(f"{shape.seed}/live-agreement")
    known: list[tuple[int, list[int]]] = []
    now, next_id, lines = 0.0, 1, []
    for _ in range(shape.requests):
        now += rng.gammavariate(shape.burstiness, 1.0 / (shape.rate * shape.burstiness))
        before, shared = rng.choice(known[-200:]) if known and rng.random() < FOLLOW else (0, [])
        new = max(LEAST_TOKENS, round(MEDIAN_NEW_TOKENS * math.exp(rng.gauss(0.0, SPREAD))))
        answer = max(LEAST_ANSWER_TOKENS, round(MEDIAN_ANSWER_TOKENS * math.exp(rng.gauss(0.0, ANSWER_SPREAD))))
        if before + new > shape.most_prompt:
            before, shared, new = 0, [], min(new, shape.most_prompt)
        tokens = before + new
        ids = shared[: before // BLOCK_TOKENS]
        fresh = -(-tokens // BLOCK_TOKENS) - len(ids)
        ids = [*ids, *range(next_id, next_id + fresh)]
        next_id += fresh
        known.append((tokens, ids))
        line = {"timestamp": round(now * 1000, 3), "input_length": tokens}
        lines.append(json.dumps(line | {"output_length": min(answer, shape.most_answer), "hash_ids": ids}) + "\n")
    path.write_text("".join(lines))
