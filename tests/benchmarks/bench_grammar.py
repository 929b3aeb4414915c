"""What grammars cost, and what the tokens that they force give back: the loop that serves, over the bundled model.

- Decoding with a schema ÷ without, nothing guessed: sampled, the same seeds, steps planned ahead in both.
- Decoding a nested document with forced tokens as guesses ÷ free text of as many tokens, one sequence.
- Plain streams beside one whose masks are as dear as an accepted grammar can make them: p99 of TPOT, and of the times
  between tokens, ÷ that of the same streams beside a plain one.
- CPU time by which a schema of 4 KiB that nobody has sent before delays the first token: compiled at the gateway, and
  again at the instance.
- Random schemas, sampled: outputs that are JSON and valid, of those that were not cut.

Pairs are measured in turns, and their ratios are what is reported.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from serving.grammar.compile import Grammars
from serving.values.sequence import FinishReason, Grammar, GrammarKind, SamplingParams
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.grammar_engine import GrammarEngine, Stream
from tests.grammar.random_schemas import random_schema

STOP = 1
BATCHES = {1: 0.97, 16: 0.95}
"""Goals of decoding with a schema ÷ without."""
STEPS, WARM = 150, 10
PLAIN_STREAMS = 8
_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2, "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": _PERSON, "minItems": 200}
NESTED = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 3, "maxLength": 10},
        "author": {**_PERSON, "properties": {**_PERSON["properties"], "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 8}, "city": {"enum": ["Rome", "Oslo", "Lima"]}},
            "required": ["street", "city"], "additionalProperties": False
        }}, "required": ["name", "age", "address"]},
        "chapters": {"type": "array", "minItems": 4, "maxItems": 4, "items": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 9},
                           "heading": {"type": "string", "maxLength": 8}, "published": {"type": "boolean"}},
            "required": ["number", "heading", "published"], "additionalProperties": False
        }}
    },
    "required": ["title", "author", "chapters"],
    "additionalProperties": False
}  # fmt: skip
HOSTILE = (
    Grammar(GrammarKind.REGEX, "(.*)x(.{60})(.|\n)*"),
    Grammar(GrammarKind.REGEX, "(.{0,40}[aeiou]){30}(.|\n)*"),
    Grammar(GrammarKind.LARK, 'start: (a | b | c)*\na: /[a-z ]+/ | /[a-y .]+/\nb: /[^x]{1,30}/\nc: a b | b a | "\\n"'),
)
Ask = tuple[Sequence[int], SamplingParams]


def schema(value: object) -> Grammar:
    """A JSON schema as the gateway makes it."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def sampling(seed: int, grammar: Grammar | None, most: int = 800) -> SamplingParams:
    """Warm, so that outputs differ."""
    stops = (STOP,) if grammar is not None else ()
    return SamplingParams(max_tokens=most, temperature=0.8, seed=seed, grammar=grammar, stop_token_ids=stops)


def prompt(index: int) -> list[int]:
    """Some tokens of no meaning."""
    return [1, *((index * 7 + position * 31) % 2900 + 60 for position in range(40))]


def rate(streams: Sequence[Stream]) -> float:
    """Tokens per second of one stream, from its `WARM`th news on."""
    one = streams[0]
    steps = one.at_s[WARM : WARM + STEPS + 1]
    return (len(steps) - 1) / (steps[-1] - steps[0])


def decode_ratio(engine: GrammarEngine, batch: int, turn: int) -> float:
    """Speed with a schema ÷ without."""

    def speed(grammar: Grammar | None) -> float:
        asks = [(prompt(index), sampling(100 * turn + index, grammar)) for index in range(batch)]
        return rate(engine.run(asks, lambda streams: min(len(s.at_s) for s in streams) > WARM + STEPS))

    return in_turns(turn, lambda: speed(schema(PEOPLE)), lambda: speed(None))


def forced_ratio(engine: GrammarEngine, turn: int) -> float:
    """Speed of a nested document ÷ that of free text of the same length."""

    def speed(grammar: Grammar | None, most: int) -> tuple[float, int]:
        (stream,) = engine.run([(prompt(turn), sampling(turn, grammar, most))])
        return (len(stream.tokens) - 1) / (stream.at_s[-1] - stream.at_s[0]), len(stream.tokens)

    with_schema, tokens = speed(schema(NESTED), 800)
    free, _ = speed(None, tokens)
    return with_schema / free


def p99_gap_s(streams: Sequence[Stream]) -> float:
    """99th percentile of the times between news of the plain streams."""
    plain = streams[:PLAIN_STREAMS]
    gaps = sorted(b - a for s in plain for a, b in zip(s.at_s[WARM:], s.at_s[WARM + 1 :], strict=False))
    return gaps[int(0.99 * len(gaps))]


def worst_tpot_s(streams: Sequence[Stream]) -> float:
    """Largest TPOT of the plain streams: their p99, as there are few."""
    return max((s.at_s[-1] - s.at_s[WARM]) / (len(s.at_s) - 1 - WARM) for s in streams[:PLAIN_STREAMS])


def hostile_ratios(engine: GrammarEngine, grammar: Grammar, turn: int) -> tuple[float, float]:
    """p99 of TPOT and of times between tokens, of plain streams beside a hostile one ÷ beside a plain one."""

    def streams(other: Grammar | None) -> list[Stream]:
        plain = [(prompt(index), sampling(index, None, 400)) for index in range(PLAIN_STREAMS)]
        asks: list[Ask] = [*plain, (prompt(99), sampling(turn, other, 400))]
        return engine.run(asks, lambda streams: all(s.end for s in streams[:PLAIN_STREAMS]))

    beside = [streams(other) for other in ((grammar, None) if turn % 2 else (None, grammar))]
    hostile, alone = beside if turn % 2 else beside[::-1]
    return worst_tpot_s(hostile) / worst_tpot_s(alone), p99_gap_s(hostile) / p99_gap_s(alone)


def in_turns(turn: int, first: Callable[[], float], second: Callable[[], float]) -> float:
    """`first` ÷ `second`, now in one order, now in the other."""
    if turn % 2:
        below = second()
        return first() / below
    above = first()
    return above / second()


def four_kib(number: int, *, rich: bool) -> dict[str, Any]:
    """A schema of 4 KiB unlike any other: plain fields with descriptions, or objects with patterns and formats."""
    properties: dict[str, Any] = {}
    while len(json.dumps(properties)) < 4096 - 200:
        index = len(properties)
        plain = {"type": ("string", "integer", "boolean")[index % 3], "description": "what is known of this field"}
        properties[f"field_{number}_{index}"] = random_schema(1000 * number + index) if rich else plain
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def new_schema_ms(engine: GrammarEngine, gateway: Grammars, number: int, *, rich: bool) -> float:
    """CPU time of this thread until both can make masks [ms]."""
    grammar = schema(four_kib(number, rich=rich))
    begun = time.thread_time()
    gateway.fresh(grammar)
    engine.grammars.fresh(grammar)
    return 1e3 * (time.thread_time() - begun)


def invalid_outputs(engine: GrammarEngine, count: int) -> list[str]:
    """Outputs over random schemas that are no JSON, or not what was asked for; those that were cut do not count."""
    schemas = [random_schema(number) for number in range(count)]
    wrong = []
    for begin in range(0, count, 32):
        numbers = range(begin, min(begin + 32, count))
        streams = engine.run([(prompt(n), sampling(n, schema(schemas[n]), 300)) for n in numbers])
        for number, stream in zip(numbers, streams, strict=True):
            text = engine.tokenizer.decode(stream.tokens)
            try:
                if stream.end is FinishReason.STOP:
                    jsonschema.validate(json.loads(text), schemas[number])
                elif stream.end is not FinishReason.LENGTH:
                    wrong.append(f"{number}: ended by {stream.end}")
            except (ValueError, jsonschema.ValidationError) as error:
                wrong.append(f"{number}: {text!r}: {error}")
    return wrong


def measure(model: Path, repeats: int, threads: int, validity: int) -> list[Figure]:
    """All figures."""
    plain, forcing = (GrammarEngine(model, threads, 1200, forced) for forced in (0, 8))
    gateway = Grammars(lambda: plain.grammars.vocabulary)
    for grammars in (gateway, plain.grammars):
        grammars.fresh(schema(_PERSON))  # the vocabulary is prepared
    figures = []
    for batch, goal in BATCHES.items():
        ratios = tuple(decode_ratio(plain, batch, turn) for turn in range(repeats))
        figures.append(Figure(f"decode with a schema / without, batch {batch}", "", ratios, goal, at_most=False))
        progress(f"batch {batch}")
    forced = tuple(forced_ratio(forcing, turn) for turn in range(repeats))
    figures.append(Figure("nested schema, forced tokens as guesses / free text", "", forced, 1.3, at_most=False))
    progress("forced tokens")
    hostile = [[hostile_ratios(forcing, grammar, turn) for turn in range(repeats)] for grammar in HOSTILE]
    told: tuple[tuple[str, float | None], ...] = (("TPOT", 1.2), ("times between tokens", None))
    for which, (name, most) in enumerate(told):
        worst = max(
            (tuple(pair[which] for pair in pairs) for pairs in hostile), key=lambda found: statistics.median(found)
        )
        figures.append(Figure(f"p99 of {name} beside a hostile grammar / beside none", "", worst, most))
    progress("hostile grammars")
    for rich in (False, True):
        cpu = tuple(new_schema_ms(plain, gateway, number, rich=rich) for number in range(max(10, repeats)))
        name = f"CPU of a new schema of 4 KiB{', rich in patterns' if rich else ''}, gateway and instance"
        figures.append(Figure(name, "ms", cpu, None if rich else 5.0))
    wrong = invalid_outputs(forcing, validity)
    for line in wrong[:20]:
        progress(line)
    figures.append(Figure(f"wrong outputs of {validity} over random schemas", "", (float(len(wrong)),), 0.0))
    return figures


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_grammar", __doc__, repeats=9)
    parser.add_argument("--threads", type=int, default=1, help="of the native step (default 1)")
    parser.add_argument("--validity", type=int, default=1000, help="sampled requests over random schemas")
    args = parser.parse_args()
    with checkpoint(args.model, bundled=True) as model:
        facts = conditions(model, threads=args.threads, steps=STEPS, validity=args.validity)
        show_conditions(facts)
        report("bench_grammar", facts, measure(model, args.repeats, args.threads, args.validity))


if __name__ == "__main__":
    main()
