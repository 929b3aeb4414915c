"""The client: what came is told as it came, and every way to fail is a failed answer with its reason."""

import asyncio
import json
import re
import time
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.tools.chaos.answer import StreamedAnswer
from serving.tools.chaos.asks import COMPLETIONS, Ask
from serving.tools.chaos.client import GatewayEndpoint, fetch
from tests.tools.chaos.http_server import STREAM, Handler, chunk, event, play, serving, token

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
    """Sends these bytes, one after the other, and closes."""

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
        ((STREAM, chunk(event(token(1))), chunk(b"")), "ended before the answer did"),
        ((STREAM, chunk(event(token(1)) + event("[DONE]")), chunk(b"")), "ended before the answer did"),
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


def test_a_server_that_hangs_is_left_at_the_deadline() -> None:
    async def hang(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(event(token(1))))
        await writer.drain()
        await asyncio.sleep(0.4)  # the server waits for it

    answer = ask(order(), hang, deadline_s=0.1)
    assert (answer.outcome, answer.reason) == ("failed", "no end after 0.1 s")
    assert answer.choices[0].tokens == [1]


def test_nobody_there_is_a_failure_too() -> None:
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
