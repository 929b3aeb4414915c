import json
from typing import Any

import httptools
import pytest

from loadgen.client.reader import AnswerReader
from loadgen.selftest.answers import (
    RenderedAnswers,
    SelftestRefusedError,
    SelftestRequest,
    SelftestStreamOptions,
    http_response,
    models_response,
    read_ask,
)


class _Response:
    def __init__(self, wire: bytes) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.complete = 0
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(wire)
        self.status = self.parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.complete += 1

    def json(self) -> Any:
        return json.loads(b"".join(self.chunks))


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("size", [0, 250, 1000])
def test_a_stream_is_a_valid_answer_with_chunks_of_the_size_asked_for(chat: bool, size: int) -> None:
    answers = RenderedAnswers(chat=chat, model="m", chunk_bytes=size)
    ask = SelftestRequest(model="m", prompt=[1, 2, 3], stream_options=SelftestStreamOptions(include_usage=True))
    response = _Response(
        answers.head(b"r-1") + answers.content + answers.content + answers.last_content + answers.tail(ask, 3)
    )
    assert (response.status, response.complete) == (200, 1)
    assert response.headers[b"x-request-id"] == b"r-1"
    reader = AnswerReader(streamed=True)
    reader.feed([0.0] * len(response.chunks), response.chunks)
    reader.finish(clean=True)
    assert (reader.done, reader.ended, reader.malformed) == (True, True, "")
    assert reader.content_chunks == 3
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (3, 3)
    content = response.chunks[1 if chat else 0]
    assert len(content) == size if size else len(content) < 250


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_answer(chat: bool) -> None:
    wire = RenderedAnswers(chat=chat, model="m", chunk_bytes=0).whole(
        SelftestRequest(model="m", prompt="a b", max_tokens=2), b"r-1"
    )
    response = _Response(wire)
    choice = response.json()["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == " word word"
    assert response.json()["usage"]["prompt_tokens"] == 2
    assert response.complete == 1


def test_no_usage_unless_asked_for() -> None:
    tail = RenderedAnswers(chat=False, model="m", chunk_bytes=0).tail(SelftestRequest(model="m"), 3)
    assert b"usage" not in tail
    assert b"[DONE]" in tail


def test_models_and_errors() -> None:
    assert _Response(models_response("m")).json()["data"][0]["id"] == "m"
    refused = _Response(SelftestRefusedError(404, "nope", "model_not_found").response())
    assert refused.status == 404
    assert refused.json()["error"]["message"] == "nope"
    assert _Response(http_response(b"")).complete == 1


def test_lengths_and_prompts() -> None:
    def ask(**fields: Any) -> SelftestRequest:
        body = json.dumps({"model": "m", **fields}).encode()
        return read_ask(body, "application/json; charset=utf-8", chat="messages" in fields, model="m")

    assert ask(prompt="a b c").input_tokens == 3
    assert ask(prompt=[4, 5]).input_tokens == 2
    assert ask(messages=[{"role": "user", "content": "a b"}, {"role": "user"}]).input_tokens == 2
    assert ask(prompt="a").output_tokens == 16
    assert ask(prompt="a", max_tokens=5, max_completion_tokens=7).output_tokens == 7


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (415, b"{}", "text/plain"),
        (400, b"{", "application/json"),
        (400, b'{"model": "m", "prompt": ""}', "application/json"),
        (400, b'{"model": "m", "prompt": "x", "max_tokens": 0}', "application/json"),
        (404, b'{"model": "other", "prompt": "x"}', "application/json"),
    ],
)
def test_what_is_refused(status: int, body: bytes, content_type: str) -> None:
    with pytest.raises(SelftestRefusedError) as refused:
        read_ask(body, content_type, chat=False, model="m")
    assert refused.value.status == status
