"""Grammars of calls: permitted output parses as a call that matches its schema; recorded output is permitted."""

import json
from typing import Any

import jsonschema
import pytest

from serving.gateway.api.tools.choose import FAMILIES
from serving.gateway.api.tools.lark import CallRule
from serving.gateway.api.tools.output_rules import OutputForm, Thinking, output_grammar
from serving.values.sequence import Grammar, GrammarKind
from tests.cases.tool_fixtures import Recorded, recorded
from tests.cases.tool_vocabulary import STOP, vocabulary_of

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "hourly": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = {"get-weather": WEATHER, "now": NOTHING}
RULES = tuple(CallRule(name, schema) for name, schema in TOOLS.items())
NAMES = sorted(FAMILIES)
TOKENS_ONLY = ("harmony", "deepseek-v3.2", "glm", "qwen-coder")
"""Families whose calls have no form without tokens of their own."""
THINKS = [name for name in NAMES if FAMILIES[name].think is not None]


@pytest.mark.parametrize(
    ("name", "as_tokens"),
    [(name, True) for name in NAMES] + [(name, False) for name in NAMES if name not in TOKENS_ONLY],
)
def test_a_forced_call_is_one_that_its_schema_allows(name: str, as_tokens: bool) -> None:
    vocabulary = vocabulary_of(FAMILIES[name], as_tokens=as_tokens)
    grammar = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm(RULES, forced=True))
    for seed in range(2):
        output = vocabulary.drawn(grammar, seed, "<|channel|>commentary to=" if name == "harmony" else "")
        content, _, calls = vocabulary.read(output, TOOLS)
        assert len(calls) >= 1, vocabulary.tokenizer.decode(output, skip_special_tokens=False)
        assert content is None
        for called, arguments in calls:
            jsonschema.validate(json.loads(arguments), TOOLS[called])


@pytest.mark.parametrize("name", NAMES)
def test_with_the_choice_left_to_the_model_text_is_free_and_calls_are_bound(name: str) -> None:
    vocabulary = vocabulary_of(FAMILIES[name])
    grammar = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm(RULES))
    forced = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm(RULES, forced=True))
    begins = "<|channel|>commentary to=" if name == "harmony" else ""
    call = vocabulary.tokenizer.decode(vocabulary.drawn(forced, 1, begins), skip_special_tokens=False)
    before, after = ("<|channel|>final<|message|>", "") if name == "harmony" else ("", "\n")
    assert vocabulary.accepts(grammar, f'{before}It is 5 < 7, and {{"a": 1}}.')
    assert vocabulary.accepts(grammar, call)
    if name not in ("llama", "harmony"):
        assert vocabulary.accepts(grammar, f"Let me see.{after}{call}")
    wrong = call.replace("get-weather", "get-letters").replace("now", "not")
    assert not vocabulary.accepts(grammar, wrong) or name == "llama"


@pytest.mark.parametrize("name", THINKS)
@pytest.mark.parametrize("thinking", [Thinking.MAYBE, Thinking.OPENED])
def test_what_binds_an_answer_begins_behind_the_reasoning(name: str, thinking: Thinking) -> None:
    vocabulary = vocabulary_of(FAMILIES[name])
    think = FAMILIES[name].think
    assert think is not None
    answer = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": {"a": {"const": 1}}}))
    begin = think[0] if thinking is Thinking.MAYBE else ""
    for kind in (
        answer,
        Grammar(GrammarKind.REGEX, r"\{\}|[a/]+"),
        Grammar(GrammarKind.LARK, 'start: "{}" | x\nx: "y"'),
    ):
        grammar = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm(answer=kind, thinking=thinking))
        assert vocabulary.accepts(grammar, f"{begin}Any {{thing}}.{think[1]}\n\n{{}}")
        assert not vocabulary.accepts(grammar, f"{begin}Any thing.{think[1]}\n\nHere.")
        assert vocabulary.accepts(grammar, "{}") == (thinking is Thinking.MAYBE)
    forced = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm(RULES, forced=True, thinking=thinking))
    output = vocabulary.tokenizer.encode(f"{begin}Now what.{think[1]}", add_special_tokens=False)
    matcher = vocabulary.matcher(forced)
    matcher.take(output)
    assert not matcher.allowed()[STOP]


@pytest.mark.parametrize("name", THINKS)
def test_the_end_of_reasoning_is_forced_when_its_tokens_are_spent(name: str) -> None:
    vocabulary = vocabulary_of(FAMILIES[name])
    think = FAMILIES[name].think
    assert think is not None
    for budget in (0, 3):
        form = OutputForm(thinking=Thinking.OPENED, budget=budget)
        matcher = vocabulary.matcher(output_grammar(vocabulary.family, vocabulary.spelling, form))
        words = vocabulary.tokenizer.encode("once upon a time there", add_special_tokens=False)
        end = vocabulary.marks.tokens[think[1]]
        for word in words[:budget]:
            assert matcher.allowed()[word]
            matcher.take((word,))
        assert matcher.allowed().nonzero()[0].tolist() == [end]
        matcher.take((end,))
        assert matcher.allowed()[words[0]]


def test_harmony_reasons_in_one_message_where_its_tokens_are_counted() -> None:
    vocabulary = vocabulary_of(FAMILIES["harmony"])
    thought = "<|channel|>analysis<|message|>a<|end|><|start|>assistant"
    for budget, twice in ((3, False), (None, True)):
        form = OutputForm(RULES, forced=True, budget=budget)
        grammar = output_grammar(vocabulary.family, vocabulary.spelling, form)
        matcher = vocabulary.matcher(grammar)
        matcher.take(vocabulary.tokenizer.encode(thought + "<|channel|>", add_special_tokens=False))
        again = vocabulary.tokenizer.encode("analysis", add_special_tokens=False)[0]
        assert bool(matcher.allowed()[again]) == twice


WRITTEN_OTHERWISE = frozenset(
    (
        "mistral/v3-single-call",  # of models without the token `[ARGS]`, which this vocabulary has
        "mistral/v3-parallel-calls",
        "mistral/v3-empty-arguments",
        "gpt-oss/harmony-compact-json",  # JSON without blanks
        "qwen3-xml/q35-python-literals",  # Python's words for JSON's
        "qwen3-xml/coder-python-literals",
        "qwen3-xml/q38-tool-call-token-in-arguments",  # a marker within an argument
    )
)
"""Records that their grammar refuses, each with what it writes otherwise."""


def test_calls_as_templates_write_them_pass() -> None:
    refused = set()
    for record in recorded():
        if _is_well_formed(record):
            vocabulary = vocabulary_of(record.family)
            rules = [CallRule(name, schema) for name, schema in record.tools.items()]
            opened = Thinking.OPENED if record.opened else Thinking.MAYBE
            grammar = output_grammar(record.family, vocabulary.spelling, OutputForm(rules, thinking=opened))
            if not vocabulary.accepts(grammar, "".join(text for text, _ in record.pieces)):
                refused.add(record.name)
    assert refused == WRITTEN_OTHERWISE


def _is_well_formed(record: Recorded) -> bool:
    """Whether a record holds calls that their schemas allow, with ordered arguments and without markers in them."""
    if (
        not record.rendered
        or record.expected is None
        or not record.expected[2]
        or "marker" in record.name
        or "trunc" in record.name
    ):
        return False
    for name, arguments in record.expected[2]:
        schema = record.tools.get(name, {})
        order = [key for key in schema.get("properties", ()) if key in arguments]
        if not schema or order != list(arguments):
            return False
        try:
            jsonschema.validate(arguments, schema)
        except jsonschema.ValidationError:
            return False
    return True
