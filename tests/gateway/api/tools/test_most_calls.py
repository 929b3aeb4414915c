"""Calls of a turn that requires one are bounded, since some models repeat them endlessly."""

from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tools.choose import FAMILIES
from serving.gateway.api.tools.lark import CallRule
from serving.gateway.api.tools.output_rules import OutputForm, output_grammar
from tests.cases.tool_vocabulary import vocabulary_of
from tests.gateway.api.support import Harness, chat

NOW = CallRule("now", {"type": "object", "properties": {}, "additionalProperties": False})
ONE_CALL = ("llama", "harmony")
"""Families whose turn allows one call only."""
TOOLS = [{"type": "function", "function": {"name": "now"}}]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_more_calls_than_allowed(name: str) -> None:
    vocabulary = vocabulary_of(FAMILIES[name])
    for most in (1, 3):
        grammar = output_grammar(vocabulary.family, vocabulary.spelling, OutputForm([NOW], forced=True, most=most))
        for seed in range(10):
            output = vocabulary.drawn(grammar, seed, "<|channel|>commentary to=" if name == "harmony" else "")
            _, _, calls = vocabulary.read(output, {"now": dict(NOW.schema)})
            assert 1 <= len(calls) <= most
    assert "{0,2}" in grammar.text or name in ONE_CALL


@pytest.mark.parametrize(
    ("fields", "most", "bounded"),
    [
        ({"tool_choice": "required"}, 8, "{0,7}"),
        ({"tool_choice": "required"}, 3, "{0,2}"),
        ({"tool_choice": "required"}, 0, "*"),
        ({"tool_choice": "auto"}, 8, "*"),
        ({"tool_choice": "required", "parallel_tool_calls": False}, 8, ""),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, 8, ""),
    ],
)
def test_the_bound_is_the_model_s_where_a_call_must_come(
    fields: dict[str, Any], most: int, bounded: str, hermes: ServedModel
) -> None:
    harness = Harness(replace(hermes, most_calls=most))
    assert chat(harness.app, tools=TOOLS, **fields).status_code == 200
    grammar = harness.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert f"calls: call{' (NL call)' if bounded else ''}{bounded}\n" in grammar.text
