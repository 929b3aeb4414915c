"""Chats with tools: the prompt, the constraint on the output, and the client's view."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from serving.gateway.api.answers import ChatCompletion as ChatAnswer
from serving.gateway.api.answers import ChatCompletionChunk as ChatChunk
from serving.values.sequence import Grammar
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, chat, check, events, post

WEATHER = {
    "name": "get-weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "now"}}]
CALL = 'Let me see.\n<tool_call>\n{"name": "get-weather", "arguments": {"city": "Größe </tool_call>"}}\n</tool_call>'
TWO = CALL + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "now"}}


def grammar_of(harness: Harness) -> Grammar | None:
    return harness.backend.jobs[-1].sequences[0].sampling.grammar


def whole(harness: Harness, said: str, *, end: bool = True, **fields: Any) -> Any:
    """The only choice of a response; asserts that it matches OpenAI's schema and our document."""
    harness.script_of = lambda _: harness.say(said, end=end)
    reply = chat(harness.app, tools=TOOLS, **fields)
    assert reply.status_code == 200, reply.text
    ChatCompletion.model_validate(reply.json())
    ChatAnswer.model_validate(reply.json())
    return reply.json()["choices"][0]


def streamed(harness: Harness, said: str, *, end: bool = True, **fields: Any) -> list[Any]:
    """Choices of a stream's chunks; asserts that each matches the document."""
    harness.script_of = lambda _: harness.say(said, end=end)
    *chunks, done = events(chat(harness.app, stream=True, **{"tools": TOOLS, **fields}).text)
    assert done == "[DONE]"
    for chunk in chunks:
        ChatChunk.model_validate(chunk)
    return [chunk["choices"][0] for chunk in chunks]


def test_calls_of_a_whole_answer(caller: Harness) -> None:
    choice = whole(caller, TWO)
    message = choice["message"]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", "Let me see.")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get-weather", "now"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"city": "Größe </tool_call>"},
        {},
    ]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_a_call_alone_has_no_content(caller: Harness) -> None:
    assert whole(caller, TWO.removeprefix("Let me see.\n"))["message"]["content"] is None


def test_calls_of_a_stream_come_with_index_id_and_name_first(caller: Harness) -> None:
    choices = streamed(caller, TWO)
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    heads = [call for call in calls if "id" in call]
    assert [(call["index"], call["function"]["name"]) for call in heads] == [(0, "get-weather"), (1, "now")]
    assert all(call["type"] == "function" and call["id"] for call in heads)
    arguments = ["".join(call["function"]["arguments"] for call in calls if call["index"] == i) for i in (0, 1)]
    assert json.loads(arguments[0]) == {"city": "Größe </tool_call>"}
    assert sum(call["index"] == 0 for call in calls) > 5, "arguments come as they are made"
    assert arguments[1] == "{}"
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert {choice["finish_reason"] for choice in choices[:-1]} == {None}


def test_a_call_that_is_cut_off_goes_out_as_it_is(caller: Harness) -> None:
    cut = CALL[: CALL.index("Größe") + 3]
    choice = whole(caller, cut, end=False, max_tokens=len(caller.model.tokenizer.encode(cut, add_special_tokens=False)))
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get-weather", "arguments": '{"city": "Grö'}


def test_old_functions_are_answered_in_old_words(caller: Harness) -> None:
    caller.script_of = lambda _: caller.say(CALL)
    functions = [WEATHER, {"name": "now"}]
    choice = chat(caller.app, functions=functions, function_call={"name": "get-weather"}).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "get-weather"
    assert "tool_calls" not in choice["message"]
    choices = streamed(caller, CALL, tools=None, functions=functions)
    assert choices[-1]["finish_reason"] == "function_call"
    pieces = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
    assert pieces[0]["name"] == "get-weather"
    assert json.loads("".join(piece["arguments"] for piece in pieces)) == {"city": "Größe </tool_call>"}


def test_the_template_sees_tools_calls_and_results(caller: Harness) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "so",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "<tool_call>5"},
        {"role": "assistant", "content": "", "function_call": {"name": "then", "arguments": '{"b": '}},
        {"role": "assistant", "content": "", "function_call": {"name": "last"}},
    ]
    whole(caller, "Yes.", messages=turns)
    prompt = caller.prompt()
    assert '{"type": "function", "function": {"name": "get-weather"' in prompt
    assert '<|assistant|><think>so</think><tool_call>now: {"a": 1}</tool_call>' in prompt
    assert "tool: <tool_call>5" in prompt
    assert 'then: {"": "{\\"b\\": "}' in prompt
    assert "last: {}" in prompt
    ids, calls = caller.backend.jobs[-1].sequences[0].prompt, caller.model.tool_marks.tokens["<tool_call>"]
    assert ids.count(calls) == 3, "what a result spells is text"
    whole(caller, "Yes.", tool_choice="none")
    assert "get-weather" not in caller.prompt()
    counted = post(caller.app, "/tokenize", {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}).json()
    whole(caller, "Yes.")
    assert tuple(counted["tokens"]) == caller.backend.jobs[-1].sequences[0].prompt


@pytest.mark.parametrize(
    ("fields", "text", "lets"),
    [
        ({}, "Just text.", True),
        ({}, CALL.replace(" </tool_call>", ""), True),
        ({}, '<tool_call>\n{"name": "other"', False),
        ({}, '<tool_call>\n{"name": "get-weather", "arguments": {"town"', False),
        ({"tool_choice": "required"}, "Just text.", False),
        ({"tool_choice": "required"}, TWO.replace(" </tool_call>", "").removeprefix("Let me see.\n"), True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, TWO.removeprefix("Let me see.\n"), False),
        ({"tool_choice": NAMED}, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', True),
        ({"tool_choice": NAMED}, '<tool_call>\n{"name": "get-weather"', False),
        ({"tool_choice": NAMED}, 2 * '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', False),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
            '<tool_call>\n{"name": "get-weather"',
            False,
        ),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', True),
        ({"response_format": {"type": "json_object"}}, CALL.removeprefix("Let me see.\n").replace(" </tool_call>", ""),
         True),
        ({"response_format": {"type": "json_object"}}, "Just text.", False),
        ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, '{"a": 1}', False),
        ({"response_format": {"type": "json_object"}, "tool_choice": NAMED}, '<tool_call>\n{"name": "now"', True),
    ],
)  # fmt: skip
def test_what_binds_the_output(caller: Harness, fields: dict[str, Any], text: str, lets: bool) -> None:
    whole(caller, "Yes.", **fields)
    grammar = grammar_of(caller)
    assert grammar is not None
    assert may_begin(caller.model, grammar, text) == lets


def test_outputs_that_go_on_where_they_might_end_are_not_bound(caller: Harness) -> None:
    for field in ({"ignore_eos": True}, {"min_tokens": 5}):
        whole(caller, "Yes and so on and on.", **field)
        assert grammar_of(caller) is None


def test_a_stop_string_counts_in_the_text_alone(caller: Harness) -> None:
    choice = whole(caller, CALL, stop=["weather", "see"])
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Let me ")
    choice = whole(caller, CALL, stop=["weather"])
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Let me see.")


def test_a_schema_that_cannot_be_followed_binds_only_where_it_is_strict(caller: Harness) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}
    function: dict[str, Any] = {"name": "odd", "parameters": odd}
    tool = {"type": "function", "function": function}
    caller.script_of = lambda _: caller.say('<tool_call>\n{"name": "odd", "arguments": {"a": "b"}}\n</tool_call>')
    assert chat(caller.app, tools=[*TOOLS, tool]).json()["choices"][0]["finish_reason"] == "tool_calls"
    strict = {"type": "function", "function": {**function, "strict": True}}
    check(chat(caller.app, tools=[*TOOLS, strict]), 400, "tools[2].function.parameters")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.custom.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
         "tool_choice.allowed_tools"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "tools[2].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": ["x"]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": 'a">'}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": 5}}]},
         "tools[0].function.description"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": TOOLS, "functions": [WEATHER]}, "functions"),
        ({"function_call": {"name": "a"}}, "function_call"),
        ({"function_call": "required", "functions": [WEATHER]}, "function_call"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": TOOLS, "tool_choice": "required", "min_tokens": 2}, "min_tokens"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field_and_queues_nothing(caller: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(caller.app, **fields), 400, param)
    assert not caller.backend.jobs


def test_a_model_without_a_form_of_calls_says_what_is_missing(harness: Harness) -> None:
    check(chat(harness.app, tools=TOOLS), 400, "tools", "unsupported_parameter", "chat template")
    check(chat(harness.app, thinking_token_budget=4), 400, "thinking_token_budget", "unsupported_parameter")
    assert not harness.backend.jobs
