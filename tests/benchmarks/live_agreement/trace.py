"""The workload of the comparison, as a Mooncake trace that both sides read.

Conversations as in the published trace: a turn's prompt is that of the turn before, its answer, and a few words more,
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
tokens in the mean, of which 1,000 are known already."""
FOLLOW = 0.4
"""Share of requests that go on with a conversation, if it has room."""
MEDIAN_ANSWER_TOKENS = 48
ANSWER_SPREAD = 0.7
LEAST_TOKENS = 64
LEAST_ANSWER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked for.

    Args:
        rate: requests a second, in virtual time.
        most_prompt, most_answer: longest prompt and answer [tokens]; longer ones are cut.
        burstiness: shape of the gaps' gamma distribution; 1 = Poisson, below 1 = bursts.
    """

    requests: int
    rate: float
    most_prompt: int
    most_answer: int
    seed: int
    burstiness: float = 1.0


@dataclass(slots=True)
class _Conversation:
    tokens: int
    ids: list[int]


def write_made(path: Path, shape: Shape) -> None:
    """Make a trace up. Effects: writes the file."""
    rng = random.Random(f"{shape.seed}/live-agreement")
    known: list[_Conversation] = []
    now, next_id, lines = 0.0, 1, []
    for _ in range(shape.requests):
        now += rng.gammavariate(shape.burstiness, 1.0 / (shape.rate * shape.burstiness))
        talk = rng.choice(known[-200:]) if known and rng.random() < FOLLOW else _Conversation(0, [])
        new = max(LEAST_TOKENS, round(MEDIAN_NEW_TOKENS * math.exp(rng.gauss(0.0, SPREAD))))
        answer = max(LEAST_ANSWER_TOKENS, round(MEDIAN_ANSWER_TOKENS * math.exp(rng.gauss(0.0, ANSWER_SPREAD))))
        answer = min(answer, shape.most_answer)
        if talk.tokens + new > shape.most_prompt:
            talk, new = _Conversation(0, []), min(new, shape.most_prompt)
        tokens = talk.tokens + new
        ids = talk.ids[: talk.tokens // BLOCK_TOKENS]
        while len(ids) < -(-tokens // BLOCK_TOKENS):
            ids.append(next_id)
            next_id += 1
        known.append(_Conversation(tokens, ids))
        lines.append(_line(now, tokens, answer, ids))
    path.write_text("".join(lines))


def write_cut(path: Path, source: Path, shape: Shape) -> None:
    """The first requests of a Mooncake trace, cut to size, at the rate asked for.

    Raises: OSError, ValueError if the source cannot be read.
    Effects: writes the file.
    """
    rows = []
    with source.open() as lines:
        for _, text in zip(range(shape.requests), lines, strict=False):
            rows.append(json.loads(text))
    first, last = rows[0]["timestamp"], rows[-1]["timestamp"]
    stretch = (len(rows) - 1) / shape.rate / max(1e-3, (last - first) / 1000)
    rng = random.Random(f"{shape.seed}/live-agreement")
    spread_s = max(0.0, stretch * 3.0)  # the trace's times are multiples of 3 s
    kept = []
    for row in rows:
        at_s = (row["timestamp"] - first) / 1000 * stretch + rng.uniform(0.0, spread_s)
        tokens = min(row["input_length"], shape.most_prompt)
        answer = min(max(row["output_length"], LEAST_ANSWER_TOKENS), shape.most_answer)
        ids = row["hash_ids"][: -(-tokens // BLOCK_TOKENS)]
        if tokens < row["input_length"] and tokens % BLOCK_TOKENS:
            tokens -= tokens % BLOCK_TOKENS  # an id stands for a whole block, or for the end of this very prompt
            ids = ids[: tokens // BLOCK_TOKENS]
        kept.append((at_s, tokens, answer, ids))
    path.write_text("".join(_line(*one) for one in sorted(kept, key=lambda one: one[0])))


def _line(at_s: float, tokens: int, answer: int, ids: list[int]) -> str:
    line = {"timestamp": round(at_s * 1000, 3), "input_length": tokens, "output_length": answer, "hash_ids": ids}
    return json.dumps(line) + "\n"
