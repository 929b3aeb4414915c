import asyncio
import json
import os
from typing import Any

import httptools
import pytest

from loadgen.client.reader import AnswerReader
from loadgen.endpoint import Backend
from loadgen.selftest.answers import (
    RenderedAnswers,
    SelftestRefusedError,
    SelftestRequest,
    SelftestStreamOptions,
    http_response,
    models_response,
    read_ask,
)
from loadgen.selftest.ceiling import Ceiling, Streams, measure_ceiling


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


def test_usage_models_errors_lengths_and_prompts() -> None:
    tail = RenderedAnswers(chat=False, model="m", chunk_bytes=0).tail(SelftestRequest(model="m"), 3)
    assert b"usage" not in tail
    assert b"[DONE]" in tail

    assert _Response(models_response("m")).json()["data"][0]["id"] == "m"
    refused = _Response(SelftestRefusedError(404, "nope", "model_not_found").response())
    assert refused.status == 404
    assert refused.json()["error"]["message"] == "nope"
    assert _Response(http_response(b"")).complete == 1

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


@pytest.mark.parametrize(("backend", "tokens_per_s"), [(Backend.CHAT, None), (Backend.COMPLETIONS, 200.0)])
def test_a_short_measurement(backend: Backend, tokens_per_s: float | None) -> None:
    cores = os.sched_getaffinity(0)
    for seconds in (0.3, 3.0, 20.0):  # a machine may pause for longer than the shortest
        found = measure_ceiling(
            seconds=seconds, streams=8, tokens_per_answer=32, backend=backend, tokens_per_s=tokens_per_s
        )
        if found.requests:
            break
    assert os.sched_getaffinity(0) == cores
    assert found.failed == 0
    assert found.requests > 0
    assert found.tokens == found.requests * 32  # of responses that ended in the window
    assert 0 < found.cpu_s <= found.seconds * 1.5
    assert found.seconds >= 0.28  # uvloop's timers may be a little early


def test_a_ceiling_counts_answers_of_the_wrong_length_as_failed() -> None:
    asked = []

    async def ask(tokens: int) -> int:
        asked.append(tokens)
        await asyncio.sleep(0.001)
        return tokens if len(asked) % 2 else 0

    found = asyncio.run(Streams(ask, streams=4, tokens_per_answer=8).measure(0.1))
    assert asked[:4] == [1, 3, 5, 7]  # spread out
    assert set(asked[4:]) == {8}
    assert 0 < found.failed < found.requests
    assert found.tokens == 8 * (found.requests - found.failed)

    found = Ceiling(streams=4, seconds=2.0, cpu_s=0.5, tokens=100_000, requests=100, reads=50_000, failed=0)
    assert found.tokens_per_s == 50_000
    assert found.tokens_per_cpu_s == 200_000
    assert found.us_per_token == pytest.approx(5.0)
    assert found.tokens_per_read == 2.0
