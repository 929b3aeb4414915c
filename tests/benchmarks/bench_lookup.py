"""Speed with draft tokens by lookup / without, in turns: the loop that serves, one sequence.

- A text rewritten with one change, greedy.
- JSON of a known schema, sampled, with a grammar but without its forced tokens.
- Free text, sampled.

The output of both must be the same. The bundled model copies no text: use --model with the folder that `cloudmatrix
import smollm2` prints.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from serving.values.sequence import Grammar, GrammarKind, SamplingParams
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.grammar_engine import GrammarEngine

FOUND = 8
STORY = (
    "Anna lived in a small house at the edge of the forest. Every morning she walked to the river to fetch water, and "
    "every evening she sat by the fire and read old books. One day in autumn a stranger knocked at her door. He was "
    "tired and wet, and he carried a wooden box under his arm. Anna gave him soup and bread, and he told her about "
    "the cities beyond the mountains, where the towers are made of glass and the streets are never dark. In the "
    "morning the stranger was gone, but the box stood on the table. Inside it Anna found a map, a silver key and a "
    "short letter."
)
PEOPLE = [
    {"first_name": first, "last_name": last, "age": age, "city": city, "profession": work}
    for first, last, age, city, work in (
        ("Maria", "Lopez", 34, "Lima", "teacher"),
        ("John", "Smith", 51, "Leeds", "carpenter"),
        ("Aiko", "Tanaka", 28, "Osaka", "nurse"),
        ("Peter", "Novak", 45, "Prague", "baker"),
    )
]
_TEXT = {"type": "string", "maxLength": 16}
_KEYS = {name: {"type": "integer"} if name == "age" else _TEXT for name in PEOPLE[0]}
_PERSON = {"type": "object", "properties": _KEYS, "required": list(_KEYS), "additionalProperties": False}
SCHEMA = {"type": "array", "items": _PERSON, "minItems": 6, "maxItems": 6}


@dataclass(frozen=True)
class Case:
    """One request. `tokens`: most of its output; `goal`: of its speed with lookup / without."""

    name: str
    prompt: str
    tokens: int
    goal: float
    temperature: float = 0.8
    grammar: Grammar | None = None


def cases() -> Iterator[Case]:
    """All requests: texts to continue, since small models follow no instructions."""
    change = f"Original text:\n{STORY}\n\nThe same text, with the name Clara in place of Anna:\nClara lived in"
    yield Case("a text rewritten with one change", change, 120, 2.0, 0.0)
    listed = "People in JSON lines:\n" + "\n".join(json.dumps(one) for one in PEOPLE) + "\n"
    schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    yield Case("JSON of a schema", listed, 200, 1.5, grammar=schema)
    yield Case("free text", "A long story about a dog and a lighthouse.\n\n", 200, 0.98)


def speed(engine: GrammarEngine, case: Case, seed: int) -> tuple[float, list[int], int]:
    """Tokens per second after the first one, the tokens, and the steps that gave them."""
    end = engine.tokenizer.eos_id
    stops = () if case.grammar is None or end is None else (end,)
    rules = SamplingParams(max_tokens=case.tokens, temperature=case.temperature, seed=seed, stop_token_ids=stops)
    sampling = replace(rules, grammar=case.grammar)
    (stream,) = engine.run([(engine.tokenizer.encode(case.prompt, add_special_tokens=False), sampling)])
    return (len(stream.tokens) - 1) / (stream.at_s[-1] - stream.at_s[0]), stream.tokens, len(stream.at_s)


def measure(model: Path, threads: int, repeats: int) -> list[Figure]:
    """A figure for each case."""
    plain, finding = (GrammarEngine(model, threads, 200, forced=0, found=found) for found in (0, FOUND))
    figures = []
    for case in cases():
        ratios = []
        for turn in range(repeats):
            pair = [speed(engine, case, turn) for engine in ((plain, finding) if turn % 2 else (finding, plain))]
            (own, output, _), (found, other, steps) = pair if turn % 2 else reversed(pair)
            assert output == other, f"{case.name}: lookup changed the output"
            ratios.append(found / own)
        progress(f"{case.name}: {len(output)} tokens in {steps} steps, without lookup {own:.0f} tokens/s")
        figures.append(Figure(f"{case.name}, with lookup / without", "", tuple(ratios), case.goal, at_most=False))
    return figures


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_lookup", __doc__, 5)
    parser.add_argument("--threads", type=int, default=1, help="of the native step (default 1)")
    args = parser.parse_args()
    with checkpoint(args.model, bundled=True) as model:
        facts = conditions(model, threads=args.threads, lookup_tokens=FOUND)
        show_conditions(facts)
        report("bench_lookup", facts, measure(model, args.threads, args.repeats))


if __name__ == "__main__":
    main()
