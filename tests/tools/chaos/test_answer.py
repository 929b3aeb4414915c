"""Equality of responses."""

import asyncio
import json
import re
import time
from copy import deepcopy
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.faults.scenario import LoadConfig
from serving.tools.chaos.asks import CHAT, COMPLETIONS, Ask, StreamedAnswer, difference, logprob_distance, make_asks
from serving.tools.chaos.chaos_client import GatewayEndpoint, fetch
from tests.tools.chaos.http_server import STREAM, Handler, chunk, event, play, serving, token

ASK = Ask(0, "test", COMPLETIONS, {"stream": True, "max_tokens": 8, "n": 2})


def piece(index: int, tokens: list[int], text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "token_ids": tokens, "finish_reason": None, **fields}]}


def answered() -> StreamedAnswer:
    """Two choices, one with log-probabilities."""
    answer = StreamedAnswer(ASK, 0.0)
    answer.take(piece(0, [1, 2], logprobs={"token_logprobs": [None, -0.5]}), 1.0)
    answer.take(piece(1, [7], finish_reason="stop"), 1.1)
    answer.take(piece(0, [3], finish_reason="length", logprobs={"token_logprobs": [-0.25]}), 1.2)
    answer.take({"choices": [], "usage": {"completion_tokens": 4, "resumptions": 2}}, 1.3)
    answer.outcome = "finished"
    return answer


def test_pieces_add_up() -> None:
    answer = answered()
    assert answer.complete
    assert answer.resumptions == 2
    first, second = answer.choices
    assert (first.tokens, first.text, first.finish, first.logprobs) == ([1, 2, 3], "xx", "length", [-0.5, -0.25])
    assert first.arrivals == [(1.0, 2), (1.2, 1)]
    assert (second.tokens, second.finish) == ([7], "stop")

    answer = StreamedAnswer(ASK, 0.0)
    answer.take(piece(0, [5], logprobs={"content": [{"token": "a", "logprob": -1.5}]}), 1.0)
    assert answer.choices[0].logprobs == [-1.5]


@pytest.mark.parametrize(
    "body",
    [
        {"index": 0, "text": "ab", "token_ids": [5]},
        {"index": 0, "delta": {"content": "ab"}, "token_ids": [5]},
        {"index": 0, "message": {"content": "ab"}, "token_ids": [5]},
        {
            "index": 0,
            "delta": {"tool_calls": [{"id": "x", "function": {"name": "a"}}, {"function": {"arguments": "b"}}]},
            "token_ids": [5],
        },
    ],
)
def test_all_wire_forms_have_text(body: dict[str, Any]) -> None:
    answer = StreamedAnswer(ASK, 0.0)
    answer.take({"choices": [body]}, 1.0)
    assert (answer.choices[0].text, answer.choices[0].tokens) == ("ab", [5])


def test_what_makes_no_difference() -> None:
    assert difference(answered(), answered()) is None
    other = answered()
    other.choices[0].arrivals = [(9.0, 3)]
    other.usage = {}
    assert difference(other, answered()) is None
    other = answered()
    other.choices[0].logprobs[0] += 1e-5
    assert difference(other, answered()) is None
    assert logprob_distance(other, answered()) == pytest.approx(1e-5, rel=1e-3)
    cut = answered()
    cut.outcome = "cancelled"
    cut.choices[0].tokens = [1, 2]
    cut.choices[0].finish = None
    cut.choices[1].tokens = []
    assert difference(cut, answered()) is None
    cut.choices[0].tokens = [1, 8]
    assert difference(cut, answered()) == "choice 0: token 1 is 8, not 2"

    answer = answered()
    before = deepcopy(answer)
    answer.compact()
    assert [choice.tokens for choice in answer.choices] == [choice.tokens for choice in before.choices]
    assert [choice.arrivals for choice in answer.choices] == [choice.arrivals for choice in before.choices]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.tokens.__setitem__(1, 9), "choice 0: token 1 is 9, not 2"),
        (lambda c: c.tokens.append(3), "choice 0: 4 tokens, not 3"),
        (lambda c: c.tokens.pop(), "choice 0: 2 tokens, not 3"),
        (lambda c: setattr(c, "finish", "stop"), "choice 0: ended by stop, not length"),
        (lambda c: setattr(c, "text", "xy"), "choice 0: equal tokens, other text"),
        (lambda c: c.logprobs.pop(), "choice 0: 1 log-probabilities, not 2"),
        (lambda c: c.logprobs.__setitem__(0, -0.6), "choice 0: log-probabilities differ by 0.1"),
    ],
)
def test_every_difference_is_told(change: Any, told: str) -> None:
    other = answered()
    change(other.choices[0])
    assert difference(other, answered()) == told


def test_asks_are_a_function_of_the_seed_and_use_everything() -> None:
    load = LoadConfig(asks=30)
    assert make_asks(load, 4, "m") == make_asks(load, 4, "m")
    assert make_asks(load, 4, "m") != make_asks(load, 5, "m")
    assert [ask.number for ask in make_asks(load, 4, "m")] == list(range(30))

    asks = make_asks(LoadConfig(asks=14, tools=True), 0, "m")
    bodies = [ask.body for ask in asks]
    assert {ask.path for ask in asks} == {COMPLETIONS, CHAT}
    assert {ask.choices for ask in asks} == {1, 2, 3}
    assert {ask.streamed for ask in asks} == {True, False}
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    for field in ("seed", "stop", "logprobs", "structured_outputs", "tools", *penalties):
        assert any(field in body for body in bodies), field
    assert any(body["temperature"] == 0 for body in bodies)
    assert max(len(body.get("prompt", "")) for body in bodies) > 2000, "long prompts too"
    assert all(body["return_token_ids"] for body in bodies)
    assert all("seed" in body or body["temperature"] == 0 for body in bodies), "each is repeatable"
    assert not any("tools" in ask.body for ask in make_asks(LoadConfig(asks=14), 0, "m")), (
        "only where a model knows how"
    )


def test_a_log_probability_that_is_no_number_is_a_difference() -> None:
    def told(first: float | None) -> StreamedAnswer:
        answer = StreamedAnswer(ASK, 0.0)
        answer.take(piece(0, [1, 2], finish_reason="length", logprobs={"content": [{"logprob": first}]}), 1.0)
        return answer

    assert "differ by inf" in str(difference(told(float("nan")), told(-1.0)))
    assert difference(told(float("-inf")), told(float("-inf"))) is None
    with pytest.raises(TypeError):
        told(None)


DEADLINE_S = 10.0


def order(**fields: Any) -> StreamedAnswer:
    body = {"stream": True, "max_tokens": 4, **fields}
    return StreamedAnswer(Ask(0, "test", COMPLETIONS, body), time.monotonic())


def ask(answer: StreamedAnswer, handler: Handler = play, deadline_s: float = DEADLINE_S, **how: Any) -> StreamedAnswer:
    async def scene() -> None:
        async with serving(handler) as url:
            await fetch(GatewayEndpoint.of(url), answer, deadline_s, **how)

    asyncio.run(scene())
    return answer


def sending(*parts: bytes) -> Handler:
    """Send these bytes in order, then close."""

    async def handler(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)

    return handler


def test_answers_are_read_piece_by_piece_or_whole() -> None:
    answer = ask(order(n=2))
    assert answer.outcome == "finished"
    assert [choice.tokens for choice in answer.choices] == [[1, 2, 3, 4]] * 2
    assert [choice.text for choice in answer.choices] == ["<1><2><3><4>"] * 2
    times = [at for at, _ in answer.choices[0].arrivals]
    assert times == sorted(times)
    assert answer.sent_s <= times[0] <= times[-1] <= answer.ended_s

    answer = ask(order(stream=False))
    assert answer.outcome == "finished"
    assert answer.choices[0].tokens == [1, 2, 3, 4]

    data = event(token(1)) + b": a comment\n\n" + event(token(2, finish="stop")) + event("[DONE]")
    parts = [chunk(data[at : at + 7]) for at in range(0, len(data), 7)]
    answer = ask(order(), sending(STREAM, *parts, chunk(b"")))
    assert answer.outcome == "finished"
    assert answer.choices[0].tokens == [1, 2]


def test_leaving_in_the_middle_is_a_cancellation() -> None:
    answer = ask(order(max_tokens=1000), enough=lambda so_far: len(so_far.choices[0].tokens) >= 3)
    assert answer.outcome == "cancelled"
    assert answer.choices[0].tokens == [1, 2, 3]
    assert ask(order(), enough=lambda so_far: len(so_far.choices[0].tokens) > 99).outcome == "finished"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((b"HTTP/1.1 503 No\r\nContent-Length: 40\r\n\r\n", b'{"error": {"message": "no instance up"}}'), "HTTP 503"),
        ((b"HTTP/1.1 500 No\r\n\r\n", b"oh"), "HTTP 500: oh"),
        ((), "closed without an answer"),
        ((b"nonsense\r\n\r\n",), "no HTTP|closed"),
        ((STREAM, chunk(event(token(1)))), "in the middle"),
        ((STREAM, chunk(event(token(1))), b"ff\r\nhalf"), "IncompleteReadError"),
        ((STREAM, chunk(event(token(1))), chunk(b"")), "ended before the response was complete"),
        ((STREAM, chunk(event(token(1)) + event("[DONE]")), chunk(b"")), "ended before the response was complete"),
        ((STREAM, chunk(event({"error": {"message": "engine lost"}}))), "in the stream: engine lost"),
        ((STREAM, chunk(event({"choices": [{"index": 9}]}))), "IndexError"),
        ((STREAM, chunk(event("{half"))), "JSONDecodeError"),
        ((STREAM, b"zz\r\n"), "ValueError"),
    ],
)
def test_every_failure_has_its_reason(parts: tuple[bytes, ...], reason: str) -> None:
    answer = ask(order(), sending(*parts))
    assert answer.outcome == "failed"
    assert re.search(reason, answer.reason), answer.reason
    assert answer.ended_s >= answer.sent_s


def test_who_hangs_or_is_not_there_fails() -> None:
    async def hang(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(event(token(1))))
        await writer.drain()
        await asyncio.sleep(0.4)  # the server waits for it

    answer = ask(order(), hang, deadline_s=0.1)
    assert (answer.outcome, answer.reason) == ("failed", "no end after 0.1 s")
    assert answer.choices[0].tokens == [1]

    answer = order()
    asyncio.run(fetch(GatewayEndpoint("127.0.0.1", 1), answer, 1.0))
    assert answer.outcome == "failed"
    assert "refused" in answer.reason.lower() or "Error" in answer.reason


def test_the_key_is_sent() -> None:
    seen: list[bytes] = []

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await fetch(GatewayEndpoint("127.0.0.1", port, "s3cret"), order(), 2.0)

    asyncio.run(scene())
    assert b"Authorization: Bearer s3cret\r\n" in seen[0]
    body_length = int(seen[0].lower().partition(b"content-length: ")[2].split()[0])
    assert body_length == len(json.dumps(order().ask.body).encode())


@pytest.mark.parametrize("url", ["https://127.0.0.1", "http://127.0.0.1:8000/llm", "127.0.0.1:8000"])
def test_only_the_gateway_itself_is_an_endpoint(url: str) -> None:
    with pytest.raises(ConfigError, match="name the gateway itself"):
        GatewayEndpoint.of(url)
