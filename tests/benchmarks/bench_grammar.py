"""What grammars cost, and what the tokens that they force save: the loop that serves, over the bundled model.

- Decoding with a schema / without, nothing guessed: sampled, the same seeds, steps planned ahead in both.
- Decoding a nested document with forced tokens as draft tokens / free text of as many tokens, one sequence.
- Plain streams next to one whose masks are as expensive as an accepted grammar can make them: p99 of TPOT / that of the
  same streams next to a plain one.
- CPU time by which a new schema of 4 KiB delays the first token: compiled at the gateway, and again at the instance.
- Random schemas, sampled: outputs that are not valid, of those that were not cut.
"""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from serving.grammar.compile import Grammars
from serving.values.sequence import FinishReason, Grammar, GrammarKind, SamplingParams
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.grammar_engine import GrammarEngine, Stream
from tests.grammar.random_schemas import random_schema

BATCHES = {1: 0.97, 16: 0.95}
"""Goals of decoding with a schema / without."""
STEPS, WARM = 150, 10
PLAIN_STREAMS = 8


def _object(**properties: Any) -> dict[str, Any]:
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


_NAME, _AGE = {"type": "string", "minLength": 2, "maxLength": 12}, {"type": "integer"}
_ADDRESS = _object(street={"type": "string", "maxLength": 8}, city={"enum": ["Rome", "Oslo", "Lima"]})
_CHAPTER = _object(
    number={"type": "integer", "minimum": 1, "maximum": 9},
    heading={"type": "string", "maxLength": 8},
    published={"type": "boolean"},
)
PEOPLE = {"type": "array", "items": _object(name=_NAME, age=_AGE), "minItems": 200}
NESTED = _object(
    title={"type": "string", "minLength": 3, "maxLength": 10},
    author=_object(name=_NAME, age=_AGE, address=_ADDRESS),
    chapters={"type": "array", "minItems": 4, "maxItems": 4, "items": _CHAPTER},
)
HOSTILE = (
    Grammar(GrammarKind.REGEX, "(.*)x(.{60})(.|\n)*"),
    Grammar(GrammarKind.REGEX, "(.{0,40}[aeiou]){30}(.|\n)*"),
    Grammar(GrammarKind.LARK, 'start: (a | b | c)*\na: /[a-z ]+/ | /[a-y .]+/\nb: /[^x]{1,30}/\nc: a b | b a | "\\n"'),
)


def schema(value: object) -> Grammar:
    """A JSON schema as the gateway makes it."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def sampling(seed: int, grammar: Grammar | None, most: int = 800) -> SamplingParams:
    """Warm, so that outputs differ."""
    stops = (1,) if grammar is not None else ()
    return SamplingParams(max_tokens=most, temperature=0.8, seed=seed, grammar=grammar, stop_token_ids=stops)


def prompt(index: int) -> list[int]:
    """Some tokens without meaning."""
    return [1, *((index * 7 + position * 31) % 2900 + 60 for position in range(40))]


def decode_ratio(engine: GrammarEngine, batch: int, turn: int) -> float:
    """Speed with a schema / without, now in one order, now in the other."""
    speeds = {}
    for grammar in (schema(PEOPLE), None) if turn % 2 else (None, schema(PEOPLE)):
        asks = [(prompt(index), sampling(100 * turn + index, grammar)) for index in range(batch)]
        streams = engine.run(asks, lambda streams: min(len(s.at_s) for s in streams) > WARM + STEPS)
        steps = streams[0].at_s[WARM : WARM + STEPS + 1]
        speeds[grammar is None] = (len(steps) - 1) / (steps[-1] - steps[0])
    return speeds[False] / speeds[True]


def forced_ratio(engine: GrammarEngine, turn: int) -> float:
    """Speed of a nested document / that of free text of the same length."""

    def speed(grammar: Grammar | None, most: int) -> tuple[float, int]:
        (stream,) = engine.run([(prompt(turn), sampling(turn, grammar, most))])
        return (len(stream.tokens) - 1) / (stream.at_s[-1] - stream.at_s[0]), len(stream.tokens)

    with_schema, tokens = speed(schema(NESTED), 800)
    return with_schema / speed(None, tokens)[0]


def hostile_ratio(engine: GrammarEngine, grammar: Grammar, turn: int) -> float:
    """Largest TPOT of plain streams (their p99, as there are few) next to a hostile one / next to a plain one."""

    def worst_tpot_s(other: Grammar | None) -> float:
        plain = [(prompt(index), sampling(index, None, 400)) for index in range(PLAIN_STREAMS)]
        asks: list[tuple[Sequence[int], SamplingParams]] = [*plain, (prompt(99), sampling(turn, other, 400))]
        streams: list[Stream] = engine.run(asks, lambda streams: all(s.end for s in streams[:PLAIN_STREAMS]))
        return max((s.at_s[-1] - s.at_s[WARM]) / (len(s.at_s) - 1 - WARM) for s in streams[:PLAIN_STREAMS])

    found = {other is None: worst_tpot_s(other) for other in ((grammar, None) if turn % 2 else (None, grammar))}
    return found[False] / found[True]


def new_schema_ms(engine: GrammarEngine, gateway: Grammars, number: int, *, rich: bool) -> float:
    """CPU time of this thread until gateway and instance can build masks of a new schema of 4 KiB [ms].

    Its fields are plain with descriptions, or objects with patterns and formats.
    """
    fields: dict[str, Any] = {}
    while len(json.dumps(fields)) < 4096 - 200:
        index = len(fields)
        plain = {"type": ("string", "integer", "boolean")[index % 3], "description": "what is known of this field"}
        fields[f"field_{number}_{index}"] = random_schema(1000 * number + index) if rich else plain
    grammar = schema(_object(**fields))
    begun = time.thread_time()
    gateway.fresh(grammar)
    engine.grammars.fresh(grammar)
    return 1e3 * (time.thread_time() - begun)


def invalid_outputs(engine: GrammarEngine, count: int) -> int:
    """Number of outputs over random schemas that are not valid; those that were cut do not count."""
    wrong = 0
    for begin in range(0, count, 32):
        schemas = {number: random_schema(number) for number in range(begin, min(begin + 32, count))}
        streams = engine.run([(prompt(n), sampling(n, schema(one), 300)) for n, one in schemas.items()])
        for (number, one), stream in zip(schemas.items(), streams, strict=True):
            text = engine.tokenizer.decode(stream.tokens)
            try:
                if stream.end is FinishReason.STOP:
                    jsonschema.validate(json.loads(text), one)
                elif stream.end is not FinishReason.LENGTH:
                    raise ValueError(f"ended by {stream.end}")
            except (ValueError, jsonschema.ValidationError) as error:
                wrong += 1
                progress(f"wrong output of schema {number}: {text!r}: {error}")
    return wrong


def measure(model: Path, repeats: int, threads: int, validity: int) -> list[Figure]:
    """All figures."""
    plain, forcing = (GrammarEngine(model, threads, 1200, forced) for forced in (0, 8))
    gateway = Grammars(lambda: plain.grammars.vocabulary)
    for grammars in (gateway, plain.grammars):
        grammars.fresh(schema(_ADDRESS))  # the vocabulary is prepared
    figures = []
    for batch, goal in BATCHES.items():
        ratios = tuple(decode_ratio(plain, batch, turn) for turn in range(repeats))
        figures.append(Figure(f"decode with a schema / without, batch {batch}", "", ratios, goal, at_most=False))
        progress(f"batch {batch}")
    forced = tuple(forced_ratio(forcing, turn) for turn in range(repeats))
    figures.append(Figure("nested schema, forced tokens as draft tokens / free text", "", forced, 1.3, at_most=False))
    progress("forced tokens")
    hostile = [tuple(hostile_ratio(forcing, grammar, turn) for turn in range(repeats)) for grammar in HOSTILE]
    worst = max(hostile, key=statistics.median)
    figures.append(Figure("p99 of TPOT next to a hostile grammar / next to none", "", worst, 1.2))
    progress("hostile grammars")
    for rich in (False, True):
        cpu = tuple(new_schema_ms(plain, gateway, number, rich=rich) for number in range(max(10, repeats)))
        name = f"CPU of a new schema of 4 KiB{', rich in patterns' if rich else ''}, gateway and instance"
        figures.append(Figure(name, "ms", cpu, None if rich else 5.0))
    wrong = (float(invalid_outputs(forcing, validity)),)
    return [*figures, Figure(f"wrong outputs of {validity} over random schemas", "", wrong, 0.0)]


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_grammar", __doc__, 9)
    parser.add_argument("--threads", type=int, default=1, help="of the native step (default 1)")
    parser.add_argument("--validity", type=int, default=1000, help="sampled requests over random schemas")
    args = parser.parse_args()
    with checkpoint(args.model, bundled=True) as model:
        facts = conditions(model, threads=args.threads, steps=STEPS, validity=args.validity)
        show_conditions(facts)
        report("bench_grammar", facts, measure(model, args.repeats, args.threads, args.validity))


if __name__ == "__main__":
    main()
