"""Chats with a model that reasons: the client's view, the counts, and the constraints."""

from typing import Any

import pytest

from serving.grammar.matcher import Matcher
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import EOS, Harness, chat, events

THOUGHT = "<think>\nA dog, I think.\n</think>\n\nThe dog was happy."


def choice_of(harness: Harness, said: str, **fields: Any) -> tuple[Any, Any]:
    harness.script_of = lambda _: harness.say(said)
    answer = chat(harness.app, **fields).json()
    return answer["choices"][0], answer["usage"]


def test_reasoning_goes_apart_from_the_answer_and_is_counted(caller: Harness) -> None:
    choice, usage = choice_of(caller, THOUGHT)
    message = choice["message"]
    assert message["content"] == "The dog was happy."
    assert message["reasoning_content"] == message["reasoning"] == "A dog, I think."
    ids = caller.model.tokenizer.encode(THOUGHT.partition("</think>")[0] + "</think>", add_special_tokens=False)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(ids)}


def test_reasoning_that_the_prompt_has_opened(caller: Harness) -> None:
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    choice, usage = choice_of(caller, "A dog.</think>Yes.", **thinks)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("A dog.", "Yes.")
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 2
    choice, usage = choice_of(caller, "Yes.", chat_template_kwargs={"enable_thinking": False})
    assert "reasoning_content" not in choice["message"]
    assert "completion_tokens_details" not in usage


def test_a_stream_tells_reasoning_by_both_names(caller: Harness) -> None:
    caller.script_of = lambda _: caller.say(THOUGHT)
    *chunks, _ = events(chat(caller.app, stream=True, stream_options={"include_usage": True}).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "A dog, I think."
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "The dog was happy."
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 4


def test_reasoning_may_be_left_out(caller: Harness) -> None:
    choice, usage = choice_of(caller, THOUGHT, include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": "The dog was happy.", "refusal": None}
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 4


def test_stop_strings_begin_behind_the_reasoning(caller: Harness) -> None:
    choice, _ = choice_of(caller, THOUGHT, stop=["dog"])
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("A dog, I think.", "The ")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "dog")


@pytest.mark.parametrize(
    ("text", "lets"),
    [('<think>Any {thing}.</think>\n{"a": 1}', True), ("<think>Any.</think>\nNo.", False), ('{"a": 1}', True)],
)
def test_a_grammar_begins_behind_the_reasoning(caller: Harness, text: str, lets: bool) -> None:
    choice_of(caller, "{}", response_format={"type": "json_object"})
    grammar = caller.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(caller.model, grammar, text) == lets


def test_the_end_of_reasoning_is_forced_when_its_budget_is_spent(caller: Harness) -> None:
    choice_of(caller, "a</think>b", thinking_token_budget=3, chat_template_kwargs={"enable_thinking": True})
    grammar = caller.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    matcher = Matcher(caller.model.grammars.fresh(grammar), caller.model.token_limit, (EOS,))
    ids = caller.model.tokenizer.encode("The dog was happy.", add_special_tokens=False)
    matcher.take(ids[:3])
    assert matcher.allowed().nonzero()[0].tolist() == [caller.model.tool_marks.tokens["</think>"]]
