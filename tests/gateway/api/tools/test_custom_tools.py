"""Custom tools: called with a text that matches their grammar, in chat completions and in Responses."""

import json
from typing import Any

import pytest

from serving.errors import GrammarError
from serving.gateway.api.tools.choose import FAMILIES
from serving.gateway.api.tools.custom_tools import InputText, custom_arguments
from serving.gateway.api.tools.lark import CallRule
from serving.gateway.api.tools.output_rules import OutputForm, output_grammar
from serving.grammar.quoted import quoted_lark
from serving.values.sequence import Grammar, GrammarKind
from tests.cases.tool_vocabulary import may_begin, vocabulary_of
from tests.gateway.api.published import check as check_schema
from tests.gateway.api.published import described
from tests.gateway.api.support import Harness, chat, check, events, named_events, post
from tests.gateway.api.tools.agent_tools import CUSTOM, PATCH, PATCH_GRAMMAR, called

IN_CHAT = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files.", "format": {
    "type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH_GRAMMAR}}}}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_writes_a_bound_input(family: Any) -> None:
    """Sampled output follows the client's grammar, and is parsed as the text."""
    vocabulary = vocabulary_of(family, as_tokens=True)
    schema = {"type": "object", "properties": {"input": {}}, "required": ["input"]}
    rule = CallRule("edit", schema, quoted_lark('start: a | "x" a\na: /"[bc\\n]{3}\\\\/ "\\n"'))
    grammar = output_grammar(family, vocabulary.spelling, OutputForm([rule], forced=True, most=1))
    for seed in range(3):
        output = vocabulary.drawn(grammar, seed)
        _, _, ((name, arguments),) = vocabulary.read(output, {"edit": schema})
        text = InputText().push(arguments)
        assert name == "edit"
        assert text.removeprefix("x")[0] == '"'
        assert text.endswith("\\\n")


@pytest.mark.parametrize(
    ("grammar", "fits", "breaks"),
    [
        (PATCH_GRAMMAR, [PATCH, PATCH.rstrip()], ["hi", PATCH + "x", PATCH.replace("-print", "print")]),
        ('start: e\ne: t ("+" t)*\nt: /[0-9]+/ | "(" e ")"', ["1+(2+3)"], ["1+", "1)"]),
        ('start: A "\\n"\nA: /[a-z]+/ & ~/.*b.*/', ["ac\n"], ["abc\n", "ac"]),
        ("start: /.*x/ | /(?s:.)y/", ["\t\"x", "\ny"], ["\nx"]),
        ('start: "a".."c" "Q\\n"i', ["bq\n", "aQ\n"], ["dq\n", "aQN"]),
        ('start: a a\n%ignore /[ \\n]+/\na: "{"', ["{ \n{"], ["{x{"]),
    ],
)  # fmt: skip
def test_a_grammar_binds_the_text_and_not_its_json(grammar: str, fits: list[str], breaks: list[str]) -> None:
    vocabulary = vocabulary_of(FAMILIES["hermes"])
    inside = Grammar(GrammarKind.LARK, 'start: "\\"" %lark {\n' + quoted_lark(grammar) + '\n} "\\""')
    for text in (*fits, *breaks):
        assert vocabulary.accepts(inside, json.dumps(text, ensure_ascii=False)) == (text in fits), text


@pytest.mark.parametrize(
    "wrong",
    ["start: <[3]>", "start: %json {}", "%import foo.X", 'start: "a', "start: /[a/", "start: \0", r"start: /\x/"],
)
def test_what_a_text_cannot_follow_is_refused(wrong: str) -> None:
    with pytest.raises(GrammarError):
        quoted_lark(wrong)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (custom_arguments(PATCH), PATCH),
        (json.dumps({"input": "\u00e9\U0001f642\\u"}), "é🙂\\u"),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{ "input":"cut \\u00', "cut "),
        ('{"patch": "a"}', "a"),
        ('{"x": 1}', '{"x": 1}'),
        ('{"inp', ""),
    ],
)
def test_an_input_is_read_as_it_comes(arguments: str, text: str, size: int) -> None:
    reader = InputText()
    pieces = [reader.push(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    assert "".join(pieces) + reader.end() == text


def test_a_call_in_responses(roomy: Harness) -> None:
    roomy.script_of = lambda _: roomy.say(called(PATCH))
    body = {"input": "hi", "tools": [CUSTOM], "stream": True}
    shown = named_events(post(roomy.app, "/v1/responses", body).text)
    for one in shown:
        check_schema("ResponseStreamEvent", one)
        assert described(one)
    item = shown[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["input"], item["id"][:4]) == (
        "custom_tool_call",
        "apply_patch",
        PATCH,
        "ctc_",
    )
    deltas = [one["delta"] for one in shown if one["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 2
    assert "".join(deltas) == PATCH
    assert [one["input"] for one in shown if one["type"] == "response.custom_tool_call_input.done"] == [PATCH]
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(roomy.model, grammar, called(PATCH))
    assert not may_begin(roomy.model, grammar, called("ls"))

    result = {
        "type": "custom_tool_call_output",
        "call_id": item["call_id"],
        "output": [{"type": "input_text", "text": "Done."}],
    }
    again = post(roomy.app, "/v1/responses", {**body, "input": [{"role": "user", "content": "hi"}, item, result]})
    assert again.status_code == 200, again.text
    assert f"<tool_call>apply_patch: {custom_arguments(PATCH)}</tool_call>" in roomy.prompt()
    assert "tool: Done." in roomy.prompt()


def test_a_call_in_chat(roomy: Harness) -> None:
    roomy.script_of = lambda _: roomy.say(called(PATCH))
    reply = chat(roomy.app, tools=[IN_CHAT])
    check_schema("CreateChatCompletionResponse", reply.json())
    choice = reply.json()["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": PATCH})
    assert choice["finish_reason"] == "tool_calls"
    deltas = [
        one["custom"]["input"]
        for event in events(chat(roomy.app, tools=[IN_CHAT], stream=True).text)[:-1]
        for one in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert "".join(deltas) == PATCH
    turns = [{"role": "user", "content": "hi"}, choice["message"],
             {"role": "tool", "tool_call_id": call["id"], "content": "Done."}]  # fmt: skip
    assert chat(roomy.app, tools=[IN_CHAT], messages=turns).status_code == 200
    assert f"<tool_call>apply_patch: {custom_arguments(PATCH)}</tool_call>" in roomy.prompt()


def test_a_choice_of_a_custom_tool(roomy: Harness) -> None:
    shell = {"type": "function", "name": "shell"}
    named = {"type": "custom", "name": "apply_patch"}
    for choice in ("required", named, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
        tools = [CUSTOM] if choice == "required" else [shell, CUSTOM]
        reply = post(roomy.app, "/v1/responses", {"input": "hi", "tools": tools, "tool_choice": choice})
        assert reply.status_code == 200, reply.text
        grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
        assert grammar is not None
        assert may_begin(roomy.model, grammar, called(PATCH))
        assert not may_begin(roomy.model, grammar, "Hm")
        assert not may_begin(roomy.model, grammar, '<tool_call>\n{"name": "shell"')
    chosen = {"type": "custom", "custom": {"name": "apply_patch"}}
    assert chat(roomy.app, tools=[IN_CHAT], tool_choice=chosen).status_code == 200


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"syntax": "lark", "definition": "start: <[3]>"}, "tools[0].format.definition"),
        ({"syntax": "lark", "definition": "start: b"}, "tools[0].format.definition"),
        ({"syntax": "lark", "definition": "x"}, "tools[0].format.definition"),
        ({"syntax": "lark", "definition": 'start: "\\ud800"'}, "tools[0].format.definition"),
        ({"syntax": "lark", "definition": 'start: "' + "a" * 300_000 + '"'}, "tools[0].format.definition"),
        ({"syntax": "regex", "definition": "(?=a)b"}, "tools[0].format.definition"),
        ({"syntax": "gbnf", "definition": ""}, "tools[0].format"),
        ({"syntax": ["lark"], "definition": ""}, "tools[0].format"),
        ({"type": "json"}, "tools[0].format"),
    ],
)
def test_a_bad_format_is_refused_by_name(roomy: Harness, form: Any, param: str) -> None:
    form = {"type": "grammar", **form}
    check(post(roomy.app, "/v1/responses", {"input": "hi", "tools": [{**CUSTOM, "format": form}]}), 400, param)


def test_a_chain_of_rules_does_not_end_the_process(roomy: Harness) -> None:
    """A chain of 3,000 rules overflowed llguidance's stack, in `structured_outputs` as well."""
    chain = "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(3000)) + 'a3000: "x"\n'
    form = {"type": "grammar", "syntax": "lark", "definition": chain}
    custom = {"input": "hi", "tools": [{**CUSTOM, "format": form}]}
    check(post(roomy.app, "/v1/responses", {**custom, "truncation": "auto"}), 400, "tools[0].format.definition")
    check(chat(roomy.app, structured_outputs={"grammar": chain}), 400, "structured_outputs.grammar", text="500 are")


def test_a_regex_binds_too(roomy: Harness) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": 'a/[/"]\\n+'}
    assert post(roomy.app, "/v1/responses", {"input": "hi", "tools": [{**CUSTOM, "format": form}]}).status_code == 200
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(roomy.model, grammar, called('a/"\n\n'))
    assert not may_begin(roomy.model, grammar, called("a/b"))
