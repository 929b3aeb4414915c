"""The real `openai` and `anthropic` clients: a loop with a tool, and a response parsed into a model."""

import json
from collections.abc import Iterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from serving.gateway.api.settings import ServedModel
from serving.values.sequence import SequenceSpec
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, running_server

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<think>Look.</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class City(BaseModel):
    """A tool's arguments, and the parsed response."""

    city: str


@pytest.fixture(scope="module")
def served(hermes: ServedModel) -> Iterator[str]:
    """A model that requests the weather, then repeats the result."""
    harness = Harness(hermes)

    def script(spec: SequenceSpec) -> Script:
        prompt = hermes.tokenizer.decode(spec.prompt, skip_special_tokens=False)
        if "weather" not in prompt:
            return harness.say('{"city": "Oslo"}')
        return harness.say("<think>So.</think>It is sunny." if "tool: sunny" in prompt else CALL)

    harness.script_of = script
    with running_server(harness.app) as url:
        yield url


@pytest.fixture(scope="module")
def client(served: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_a_loop_of_openais(client: openai.OpenAI) -> None:
    tools: list[ChatCompletionToolParam] = [
        {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    ]
    turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is it in Oslo?"}]
    first = client.chat.completions.create(model="tiny", messages=turns, tools=tools).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    said = first.message.model_dump(exclude_none=True)
    turns += [said, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    with client.chat.completions.stream(model="tiny", messages=turns, tools=tools) as stream:
        last = stream.get_final_completion().choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "It is sunny.")


def test_a_stream_of_openais_that_calls(client: openai.OpenAI) -> None:
    turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is it in Oslo?"}]
    tool = openai.pydantic_function_tool(City, name="weather")
    with client.chat.completions.stream(model="tiny", messages=turns, tools=[tool]) as stream:
        kinds = {event.type for event in stream}
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert "tool_calls.function.arguments.done" in kinds
    assert call.function.parsed_arguments == City(city="Oslo")


def test_an_answer_of_openais_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=[{"role": "user", "content": "Which city?"}], response_format=City
    )
    assert answer.choices[0].message.parsed == City(city="Oslo")


def test_a_loop_of_anthropics(served: str) -> None:
    tools: list[ToolParam] = [{"name": "weather", "input_schema": PARAMETERS}]
    turns: list[MessageParam] = [{"role": "user", "content": "How is it in Oslo?"}]
    with anthropic.Anthropic(base_url=served, api_key="key", max_retries=0) as client:
        first = client.messages.create(model="tiny", max_tokens=100, messages=turns, tools=tools)
        assert first.stop_reason == "tool_use"
        assert [block.type for block in first.content] == ["thinking", "tool_use"]
        call = first.content[1]
        assert call.type == "tool_use"
        assert call.input == {"city": "Oslo"}
        result: MessageParam = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}],
        }
        turns += [{"role": "assistant", "content": first.content}, result]
        with client.messages.stream(model="tiny", max_tokens=100, messages=turns, tools=tools) as stream:
            last = stream.get_final_message()
    assert [block.text for block in last.content if block.type == "text"] == ["It is sunny."]
    assert last.stop_reason == "end_turn"
