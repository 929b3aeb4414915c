"""What draft tokens by lookup give: the loop that serves, one greedy sequence, with lookup / without, in turns.

- A text rewritten with one change.
- JSON of a known schema: as a grammar, without its forced tokens in both; and free, after examples in the prompt.
- Free text: a story.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import Grammar, GrammarKind, SamplingParams
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.grammar_engine import GrammarEngine

FOUND = 8
STORY = (
    "Anna lived in a small house at the edge of the forest. Every morning she walked to the river to fetch water, and "
    "every evening she sat by the fire and read old books. One day in autumn a stranger knocked at her door. He was "
    "tired and wet, and he carried a wooden box under his arm. Anna gave him soup and bread, and he told her about the "
    "cities beyond the mountains, where the towers are made of glass and the streets are never dark. In the morning the "
    "stranger was gone, but the box stood on the table. Inside it Anna found a map, a silver key and a short letter."
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
    question: str
    tokens: int
    goal: float
    grammar: Grammar | None = None


def cases() -> Iterator[Case]:
    """All requests."""
    change = f"Replace the name Anna with Clara in this text. Give only the changed text.\n\n{STORY}"
    yield Case("a text rewritten with one change", change, 160, 2.0)
    listed = "\n".join(json.dumps(one) for one in PEOPLE)
    yield Case("JSON lines after four examples", f"Continue this list with ten more people.\n\n{listed}", 200, 1.5)
    schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    asked = f"List six people as JSON, an array of objects like this one: {json.dumps(PEOPLE[0])}"
    yield Case("JSON of a schema, as a grammar", asked, 240, 1.5, schema)
    yield Case("free text", "Write a long story about a dog and a lighthouse.", 200, 0.98)


def speed(engine: GrammarEngine, tokens: Sequence[int], case: Case) -> tuple[float, list[int], int]:
    """Tokens per second after the first one, the tokens, and the steps that gave them."""
    stops = () if engine.tokenizer.eos_id is None else (engine.tokenizer.eos_id,)
    sampling = SamplingParams(max_tokens=case.tokens, temperature=0.0, grammar=case.grammar, stop_token_ids=stops)
    (stream,) = engine.run([(tokens, sampling)])
    return (len(stream.tokens) - 1) / (stream.at_s[-1] - stream.at_s[0]), stream.tokens, len(stream.at_s)


def chat(tokenizer: Tokenizer, question: str) -> list[int]:
    """A prompt in ChatML, which SmolLM2 follows."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text, add_special_tokens=False)


def measure(model: Path, threads: int, repeats: int) -> list[Figure]:
    """A figure for each case."""
    plain, finding = (GrammarEngine(model, threads, 200, forced=0, found=found) for found in (0, FOUND))
    figures = []
    for case in cases():
        tokens, ratios = chat(plain.tokenizer, case.question), []
        for turn in range(repeats):
            pair = [speed(engine, tokens, case) for engine in ((plain, finding) if turn % 2 else (finding, plain))]
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
