"""The family of a model, and the parts of outputs that no record has."""

from dataclasses import replace
from typing import get_args

import pytest

from serving.config.model import ToolFamily
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tools.arguments import as_json, types_of
from serving.gateway.api.tools.choose import FAMILIES, family_of
from serving.gateway.api.tools.family import OutputParser
from tests.cases.tool_parsing import put_together
from tests.gateway.api.support import Harness, chat, check

GLM = "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>"
GLM_FLASH = (
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>...</tool_call>"
)
YOUTU = (
    "<|begin_of_tool_description|>```json\n{}\n```<tool_call>{"
    '"name": "function-name", "arguments": {"param1": "value1"}}</tool_call>'
)
DEEPSEEK_V32 = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="$FUNCTION_NAME">\n</｜DSML｜function_calls>'
"""Instructions of the templates of GLM-4.5, GLM-4.7-Flash, Youtu-LLM and DeepSeek-V3.2 for calls."""
TOOLS = [{"type": "function", "function": {"name": "now"}}]


def test_the_configuration_knows_every_family() -> None:
    assert set(get_args(ToolFamily)) == {"auto", "none", *FAMILIES}


@pytest.mark.parametrize(
    ("name", "template", "tokens"),
    [
        ("harmony", "", {"<|channel|>", "<|message|>"}),
        ("kimi-k2", "", {"<|tool_calls_section_begin|>"}),
        ("deepseek-v3", "x<｜tool▁calls▁begin｜>```json", {"<｜tool▁calls▁begin｜>"}),
        ("deepseek-v3.1", "x<｜tool▁calls▁begin｜>", {"<｜tool▁calls▁begin｜>"}),
        ("deepseek-v3.2", "", {"<｜tool▁calls▁begin｜>", "｜DSML｜"}),
        ("mistral", "", {"[TOOL_CALLS]"}),
        ("mistral-think-text", "<think>", {"[TOOL_CALLS]"}),
        ("glm", "<tool_call><arg_key>", {"<tool_call>"}),
        ("qwen-coder", "<tool_call>\n<function=", {"<tool_call>"}),
        ("hermes", "<tool_call>", set()),
        ("llama", "", {"<|python_tag|>"}),
        ("llama", '{"name": function name, "parameters": dictionary}', set()),
        ("glm", GLM, {"<tool_call>", "<arg_key>", "<arg_value>", "<think>"}),
        ("glm", GLM_FLASH, {"<tool_call>", "<arg_key>", "<arg_value>", "<think>"}),
        ("hermes", YOUTU, {"<tool_call>", "<tool_response>", "<think>"}),
        ("deepseek-v3.2", DEEPSEEK_V32, {"<｜tool▁calls▁begin｜>", "｜DSML｜", "<think>"}),
        (None, "Plain.", set()),
    ],
)
def test_templates_and_tokens_tell_the_family(name: str | None, template: str, tokens: set[str]) -> None:
    found = family_of(template, tokens)
    assert (found and found.name) == name


def test_the_configuration_wins(hermes: ServedModel) -> None:
    assert hermes.tool_family is FAMILIES["hermes"]
    assert replace(hermes, tools="llama").tool_family is FAMILIES["llama"]
    check(chat(Harness(replace(hermes, tools="none")).app, tools=TOOLS), 400, "tools", text='"none"')


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, {"string", "number"}),
        ({"oneOf": [{"type": "string"}, {}]}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({}, set()),
        (None, set()),
    ],
)
def test_types_that_a_schema_may_allow(schema: object, types: set[str]) -> None:
    root = {"$defs": {"n": {"type": "number"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of(schema, root) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"string"}, '"5"'),
        (" 5 ", {"integer"}, "5"),
        ("True", {"boolean"}, "true"),
        ("None", {"string", "null"}, "null"),
        ("five", {"integer"}, '"five"'),
        ("[1", {"array"}, '"[1"'),
        ("5", {"string", "boolean"}, '"5"'),
        ("1e400", {"number"}, '"1e400"'),
        ("NaN", {"number"}, '"NaN"'),
        ("[" * 5000, {"array"}, '"' + "[" * 5000 + '"'),
    ],
)
def test_raw_arguments_become_what_their_schema_allows(text: str, types: set[str], value: str) -> None:
    assert as_json(text, frozenset(types)) == value


@pytest.mark.parametrize(
    ("family", "text", "parsed"),
    [
        ("hermes", '<tool_call>{"arguments": null, "name": "f"}</tool_call>', (None, None, (("f", "{}"),))),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
         (None, None, (("f", '{"a": 1}'),))),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> Done.', (" Done.", None, (("f", "{}"),))),
        ("hermes", "<tool_call>{}</tool_call>", ("<tool_call>{}</tool_call>", None, ())),
        ("hermes", "<tool_call>", (None, None, ())),
        ("hermes", "a </think> b", ("a  b", None, ())),
        ("hermes", "a<think>b</think>c", ("ac", "b", ())),
        ("hermes", "2 <tool", ("2 <tool", None, ())),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>",
         (None, None, (("f", "{}"),))),
        ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|><|tool_call_end|>",
         (None, None, (("f", "{}"),))),
        ("deepseek-v3.2", "a <｜DSML｜what> b", ("a<｜DSML｜what> b", None, ())),
        ("mistral", "[TOOL_CALLS]two words", ("two words", None, ())),
        ("llama", '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"a": 1}}',
         (None, None, (("f", "{}"), ("f", '{"a": 1}')))),
        ("llama", '  {"name": "g", "parameters": {}}', ('{"name": "g", "parameters": {}}', None, ())),
        ("harmony", "<|channel|>commentary to=functions.f<|message|><|call|>", (None, None, (("f", "{}"),))),
    ],
)  # fmt: skip
def test_what_no_record_has(family: str, text: str, parsed: object) -> None:
    marks = FAMILIES[family].marks_of({})
    parser = OutputParser(FAMILIES[family], marks, {"f": {}})
    assert put_together([*parser.text(text), *parser.end()]) == parsed


def test_where_only_calls_can_come_the_beginning_of_one_is_not_shown() -> None:
    parser = OutputParser(FAMILIES["hermes"], FAMILIES["hermes"].marks_of({}), {"f": {}}, calls_only=True)
    text = '<think>b</think><tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool'
    assert put_together([*parser.text(text), *parser.end()]) == (None, "b", (("f", "{}"),))
