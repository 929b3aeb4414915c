"""The real `openai` client, sync and async, against uvicorn on loopback."""

import asyncio
import http.client
import json
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel

from serving.errors import DeadlineError, EngineError, OverloadedError
from tests.gateway.api.support import Harness
from tests.kvpool.waits import wait_for

SAID = "Once upon a time 你好"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def server(shared: tuple[Harness, str]) -> tuple[Harness, str]:
    harness = shared[0].renewed()
    harness.script_of = lambda _: harness.say(SAID, cached_tokens=3)
    return harness, shared[1]


@pytest.fixture
def client(server: tuple[Harness, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1)
    assert [choice.message.content for choice in answer.choices] == [SAID] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SAID
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=[[68], [70]], echo=True, logprobs=1, max_tokens=30)
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].text.endswith(SAID)
    stream = client.completions.create(
        model="tiny", prompt="The", stream=True, extra_body={"top_k": 5, "min_tokens": 1}
    )
    assert "".join(c.choices[0].text for c in stream) == SAID


def test_async_client_many_at_once(server: tuple[Harness, str]) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server[1]}/v1", api_key="key", max_retries=0) as client:
            plain = await client.chat.completions.create(model="org/tiny", messages=MESSAGES)
            assert plain.model == "org/tiny"
            return await asyncio.gather(*(ask(client) for _ in range(20)))

    assert asyncio.run(all_at_once()) == [SAID] * 20


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "org/tiny"]
    assert client.models.retrieve("org/tiny").id == "org/tiny"


def test_errors_become_the_clients_exceptions(server: tuple[Harness, str], client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=99999)
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "max_tokens")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    harness, _ = server
    harness.backend.refuse = OverloadedError("full", retry_after_s=1)
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert full.value.response.headers["retry-after"] == "1"


def test_failures_of_the_engine(server: tuple[Harness, str], client: openai.OpenAI) -> None:
    harness, _ = server
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    with pytest.raises(openai.APIError, match="failed inside the server"):
        list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
    *_, last = client.responses.create(model="tiny", input="hi", stream=True)
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    harness.backend.generations.clear()
    harness.script_of = lambda _: harness.say("Once upon", fail_after=0, error=DeadlineError("too late"))
    with pytest.raises(openai.APIStatusError) as over:
        client.with_options(max_retries=2).chat.completions.create(model="tiny", messages=MESSAGES)
    assert over.value.status_code == 408
    assert len(harness.backend.generations) == 1, "what is too late is not repeated"


@pytest.mark.parametrize("stream", [True, False])
def test_closing_the_connection_cancels_the_generation(server: tuple[Harness, str], stream: bool) -> None:
    harness, url = server
    harness.script_of = lambda _: harness.say("Once upon a time", hang_after=2)
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "stream": stream})
    sent = {"authorization": "Bearer key", "content-type": "application/json"}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/chat/completions", body, sent)
    wait_for(lambda: harness.backend.generations, "it is generated")
    if stream:
        assert connection.getresponse().readline()
    connection.close()
    wait_for(lambda: harness.backend.generations[0].cancelled, "the generation was cancelled")


def test_a_large_upload_is_read_whole(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="a dog " * 100_000, extra_body={"truncate_prompt_tokens": 4}, max_tokens=5
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


class Answer(BaseModel):
    """Model into which a structured output is parsed."""

    name: str
    age: int


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="hi", instructions="Be brief.")
    assert whole.output_text == SAID
    assert whole.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == 3
    with client.responses.stream(model="tiny", input=[{"role": "user", "content": "hi"}]) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == SAID
    assert final.status == "completed"


def test_a_response_is_parsed_into_a_model(server: tuple[Harness, str], client: openai.OpenAI) -> None:
    harness, _ = server
    harness.script_of = lambda _: harness.say('{"name": "Tom", "age": 5}')
    parsed = client.responses.parse(model="tiny", input="hi", text_format=Answer)
    assert parsed.output_parsed == Answer(name="Tom", age=5)
    grammar = harness.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert '"age"' in grammar.text


def test_kept_responses(server: tuple[Harness, str], client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="hi")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 3, "the client turns the pages"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    assert (gone.value.param, gone.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)
