"""Requests of these tests, and the outputs of the plainest generator."""

import random
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from serving.values.sequence import FinishReason, Grammar, GrammarKind, SamplingParams
from tests.model.reference import ReferenceGenerator

VOCAB = 320
EOS = 2
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    n: int = 1
    namespace: str = "default"
    salt: bytes = b""

    def choice(self, index: int) -> SamplingParams:
        """Sampling of one of the `n` choices: same order, another seed."""
        return replace(self.sampling, seed=self.sampling.seed + index)


class Reference:
    """Expected outputs, each computed once."""

    def __init__(self, checkpoint: Path) -> None:
        self._generator = ReferenceGenerator(checkpoint)
        self._known: dict[tuple[tuple[int, ...], SamplingParams], list[int]] = {}

    def output(self, prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
        """All tokens of one sequence."""
        known = self._known.get((prompt, sampling))
        if known is None:
            known = self._known[prompt, sampling] = self._generator.generate(list(prompt), sampling)
        return known

    def outputs(self, ask: Ask) -> list[list[int]]:
        """All choices of one request."""
        return [self.output(ask.prompt, ask.choice(i)) for i in range(ask.n)]

    def confirms(self, prompt: tuple[int, ...], sampling: SamplingParams, told: list[int]) -> bool:
        """Whether a greedy output equals `output`, in a fraction of the time.

        One pass over all of it shows whether each token is the best one after those before it. Only if it is not, in
        which
        case last bits may have decided between two tokens, the output is generated.
        """
        plain = sampling == replace(GREEDY, max_tokens=sampling.max_tokens)
        if plain and len(told) == sampling.max_tokens:
            logits = self._generator.logits([*prompt, *told[:-1]])[len(prompt) - 1 :]
            if logits.argmax(1).tolist() == told:
                return True
        return told == self.output(prompt, sampling)

    def finishes(self, ask: Ask) -> list[FinishReason]:
        """Finish reason of each choice."""
        return [
            FinishReason.STOP if out[-1] in ask.sampling.stop_token_ids else FinishReason.LENGTH
            for out in self.outputs(ask)
        ]


def tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    """A random prompt."""
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def varied_asks(block_tokens: int, step_tokens: int, count: int = 200) -> list[Ask]:
    """`count` requests: all lengths, borders of blocks and chunks, shared prefixes, several choices, sampling."""
    rng = random.Random(20)
    asks = [Ask(tokens(rng, length), rng_greedy(rng)) for length in border_lengths(block_tokens, step_tokens)]
    asks += [Ask(tokens(rng, rng.randrange(1, block_tokens)), rng_greedy(rng)) for _ in range(30)]
    asks += [Ask(tokens(rng, rng.randrange(150, 600)), rng_greedy(rng)) for _ in range(20)]
    for _ in range(4):
        base = tokens(rng, rng.randrange(2 * block_tokens, 9 * block_tokens))
        asks += [Ask((*base, *tokens(rng, rng.randrange(1, 40))), rng_greedy(rng)) for _ in range(10)]
    asks += [Ask(tokens(rng, rng.randrange(1, 80)), rng_greedy(rng), n=rng.randrange(2, 5)) for _ in range(20)]
    while len(asks) < count:
        asks.append(Ask(tokens(rng, rng.randrange(1, 120)), rng_sampled(rng), n=rng.choice((1, 1, 1, 2))))
    rng.shuffle(asks)
    return asks[:count]


def grammar_asks(count: int) -> list[Ask]:
    """Requests whose outputs have a grammar: all kinds, shared prefixes, several choices, greedy and sampled."""
    rng = random.Random(31)
    base = tokens(rng, 70)
    prompts = [(*base[: rng.randrange(71)], *tokens(rng, rng.randrange(1, 60))) for _ in range(count)]
    return [Ask(prompt, rng_grammar(rng), n=rng.choice((1, 1, 3))) for prompt in prompts]


def border_lengths(block_tokens: int, step_tokens: int) -> list[int]:
    """One less, equal, one more than multiples of a block and of a chunk."""
    blocks = [multiple * block_tokens for multiple in (1, 2, 3, 5)]
    chunks = [multiple * step_tokens for multiple in (1, 2, 3, 4)]
    return sorted({middle + off for middle in (*blocks, *chunks) for off in (-1, 0, 1)})


def rng_greedy(rng: random.Random) -> SamplingParams:
    """Greedy, some with a stop token, which some must not use too early."""
    stop = (EOS, rng.randrange(VOCAB), rng.randrange(VOCAB)) if rng.random() < 0.5 else ()
    most = rng.randrange(1, 20)
    return replace(GREEDY, max_tokens=most, stop_token_ids=stop, min_tokens=rng.randrange(0, most))


RECORD = Grammar(
    GrammarKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["cat", "dog"]}, '
    '"ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}, "required": ["name", "kind", "ages"], '
    '"additionalProperties": false}',
)
LETTERS = Grammar(GrammarKind.REGEX, "[a-z ]*")
GRAMMARS = (
    RECORD,
    replace(RECORD, free_whitespace=True),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
    Grammar(GrammarKind.REGEX, "[a-z]{2,5}(-[0-9]{3}){1,4}"),
    Grammar(GrammarKind.LARK, 'start: "yes, please" | "no"'),
    LETTERS,
)


def rng_grammar(rng: random.Random) -> SamplingParams:
    """A grammar, greedy or sampled, some with penalties or log-probabilities."""
    sampling = rng_greedy(rng) if rng.random() < 0.3 else rng_sampled(rng)
    most, stops = rng.randrange(2, 48), (EOS, *sampling.stop_token_ids[:1])
    rules = {"max_tokens": most, "min_tokens": 0, "stop_token_ids": stops, "grammar": rng.choice(GRAMMARS)}
    return replace(sampling, **rules) if rng.random() < 0.3 else replace(GREEDY, **rules, temperature=0.9, seed=most)


def rng_sampled(rng: random.Random) -> SamplingParams:
    """Seeded sampling with any mix of filters, penalties and biases."""
    return SamplingParams(
        max_tokens=rng.randrange(2, 16),
        temperature=rng.choice((0.5, 0.9, 1.3)),
        top_p=rng.choice((1.0, 0.9, 0.5)),
        top_k=rng.choice((0, 5, 40)),
        min_p=rng.choice((0.0, 0.05)),
        repetition_penalty=rng.choice((1.0, 1.2)),
        presence_penalty=rng.choice((0.0, 0.6)),
        frequency_penalty=rng.choice((0.0, 0.4)),
        logit_bias=rng.choice(((), ((5, 4.0), (9, -3.0)))),
        bad_words=rng.choice(((), ((7,), (30, 31), (8, 9, 10)))),
        allowed_token_ids=rng.choice(((), (), (EOS, *range(5, 300)))),
        seed=rng.getrandbits(60),
        stop_token_ids=(EOS,),
    )
