import asyncio
import socket

import pytest

from loadgen.client import Exchange, Failure, Keep, LoadClient
from loadgen.record import RequestOutcome
from tests.loadgen.client.ended import digest
from tests.loadgen.client.events import CHAT, DONE, chunked, frame, plain, text
from tests.loadgen.client.scripted import CLOSE, HANG, READ, RESET, Script, client_of, on_both_loops, scripted

ANSWER = chunked(*CHAT)
HEAD = ANSWER[: ANSWER.index(b"\r\n\r\n") + 4]


async def ask(client: LoadClient, body: bytes = b"{}") -> Exchange:
    return await client.exchange(client.prepare(body, "r-1"))


@pytest.mark.real_time
@on_both_loops
async def test_stamps_stand_in_order() -> None:
    script: Script = [
        READ, 0.05, HEAD, 0.05, *(frame(part) for part in CHAT[:-1]), 0.05, frame(DONE) + b"0\r\n\r\n", HANG,
    ]  # fmt: skip
    async with scripted(script) as server, client_of(server.url) as client:
        made = await ask(client)
        found = digest(made)
    assert found.outcome is RequestOutcome.OK
    assert made.connect_s is not None
    assert made.first_byte_s is not None
    assert made.ended_s is not None
    assert made.first_byte_s - made.started_s >= 0.045
    assert found.first_answer_s is not None
    assert found.first_answer_s - made.first_byte_s >= 0.045
    assert made.ended_s - found.first_answer_s >= 0.045
    assert (made.status, made.content_type) == (200, "text/event-stream")


@on_both_loops
async def test_a_connection_is_used_again() -> None:
    async with scripted([READ, ANSWER, READ, plain(b"{}", 404, "x-request-id: s-2"), HANG]) as server:
        async with client_of(server.url, keep=Keep(body=True)) as client:
            first, second = await ask(client, b"{1}"), await ask(client, b"{2}")
        assert server.connections == 1
    assert first.connect_s is not None
    assert second.connect_s is None
    assert (first.request_id, second.request_id) == ("r-1", "s-2")
    assert (first.body, second.body) == (b"{1}", b"{2}")
    assert second.status == 404
    assert client.meter.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
@on_both_loops
async def test_a_connection_is_not_used_again_when_the_server_says_so(answer: bytes) -> None:
    async with scripted([READ, answer, HANG]) as server, client_of(server.url) as client:
        assert [(await ask(client)).status for _ in range(2)] == [200, 200]
        assert server.connections == 2


@on_both_loops
async def test_connections_that_are_not_used_again() -> None:
    async with scripted([READ, ANSWER, HANG]) as server, client_of(server.url, max_idle=0) as client:
        assert [(await ask(client)).failure for _ in range(2)] == [None, None]
        assert server.connections == 2
    async with scripted([READ, ANSWER + b"HTTP/1.1 200 OK\r\n\r\n", HANG], [READ, ANSWER, HANG]) as server:
        async with client_of(server.url) as client:
            assert [digest(await ask(client)).outcome for _ in range(2)] == [RequestOutcome.OK, RequestOutcome.OK]
        assert server.connections == 2

    async with scripted([READ, ANSWER, CLOSE], [READ, ANSWER, HANG]) as server, client_of(server.url) as client:
        await ask(client)
        await asyncio.sleep(0.05)
        assert digest(await ask(client)).outcome is RequestOutcome.OK
        assert len(server.requests) == 2
    assert client.meter.retries == 0


@on_both_loops
async def test_one_silent_retry_when_a_kept_connection_was_dead() -> None:
    """The second request is read and not answered, as if it had crossed the server's own close."""
    async with scripted([READ, ANSWER, READ, CLOSE], [READ, ANSWER, HANG]) as server:
        async with client_of(server.url) as client:
            await ask(client)
            made = await ask(client)
        assert len(server.requests) == 3
    assert digest(made).outcome is RequestOutcome.OK
    assert made.connect_s is not None
    assert client.meter.retries == 1


@on_both_loops
async def test_a_retry_only_for_a_kept_connection_without_a_byte_of_the_answer() -> None:
    async with scripted([READ, ANSWER, READ, CLOSE], [READ, CLOSE]) as server, client_of(server.url) as client:
        await ask(client)
        made = await ask(client)
        assert len(server.requests) == 3
    assert (made.failure, digest(made).outcome) == (Failure.LOST, RequestOutcome.CONNECTION)
    assert made.error == "connection closed by the server before a response arrived"

    async with scripted([READ, RESET]) as server, client_of(server.url) as client:
        made = await ask(client)
        assert len(server.requests) == 1
    assert made.failure is Failure.LOST
    assert made.error == "connection reset by the server before a response arrived"

    async with scripted([READ, ANSWER, READ, HEAD[:20], 0.02, CLOSE]) as server, client_of(server.url) as client:
        await ask(client)
        made = await ask(client)
        assert len(server.requests) == 2
    assert digest(made).outcome is RequestOutcome.CONNECTION
    assert "in the middle of the answer" in made.error


@on_both_loops
async def test_bodies_of_all_framings() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with scripted([READ, head, *CHAT, CLOSE]) as server, client_of(server.url) as client:
        made = await ask(client)
    assert (made.failure, digest(made).outcome) == (None, RequestOutcome.OK)
    script: Script = [READ, *(step for at in range(len(ANSWER)) for step in (ANSWER[at : at + 1], 0.0)), HANG]
    async with scripted(script) as server, client_of(server.url) as client:
        found = digest(await ask(client))
    assert (found.outcome, found.text) == (RequestOutcome.OK, "Once upon")

    async with scripted([READ, HEAD, *(frame(part) for part in CHAT[:3]), CLOSE]) as server:
        async with client_of(server.url) as client:
            made = await ask(client)
    found = digest(made)
    assert (made.failure, found.outcome) == (Failure.LOST, RequestOutcome.TRUNCATED)
    assert found.text == "Once upon"


@on_both_loops
async def test_an_interim_answer_is_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with scripted([READ, interim, 0.05, ANSWER, HANG]) as server, client_of(server.url) as client:
        made = await ask(client)
    assert (made.status, digest(made).outcome) == (200, RequestOutcome.OK)
    assert made.first_byte_s is not None
    assert made.first_byte_s - made.started_s >= 0.045


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        HEAD + b"nonsense\r\n\r\n",
    ],
)
@on_both_loops
async def test_what_is_not_http(answer: bytes) -> None:
    async with scripted([READ, answer, HANG]) as server, client_of(server.url) as client:
        made = await ask(client)
    assert (made.failure, digest(made).outcome) == (Failure.NOT_HTTP, RequestOutcome.MALFORMED_REPLY)
    assert "not a valid HTTP/1.1 answer" in made.error


@on_both_loops
async def test_nobody_answers() -> None:
    """No server; no such name; and TLS against a server that never completes the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with client_of(f"http://127.0.0.1:{port}") as client:
        made = await ask(client)
    assert (made.failure, digest(made).outcome) == (Failure.CONNECT, RequestOutcome.CONNECTION)
    assert made.error == f"connection refused (127.0.0.1, port {port})"
    assert made.ended_s is not None

    async with client_of("http://no-such-host.invalid:1") as client:
        made = await ask(client)
    assert made.failure is Failure.CONNECT
    assert made.error == "the name no-such-host.invalid is unknown"

    async with (
        scripted([HANG]) as server,
        client_of(server.url.replace("http", "https"), connect_timeout_s=0.1) as client,
    ):
        made = await ask(client)
    assert made.failure is Failure.CONNECT
    assert made.error.startswith("no connection within 0.1 s")


@on_both_loops
async def test_an_answer_that_comes_too_late_or_for_nobody() -> None:
    async with scripted([READ, HEAD + frame(CHAT[1]), HANG]) as server:
        async with client_of(server.url, request_timeout_s=0.1) as client:
            made = await ask(client)
            await asyncio.wait_for(server.left.wait(), 30)
    found = digest(made)
    assert (found.outcome, found.text) == (RequestOutcome.TIMEOUT, "Once")
    assert found.error == "not complete after 0.1 s"
    assert made.ended_s is not None
    assert made.ended_s - made.started_s >= 0.09

    async with scripted([READ, HEAD, HANG]) as server, client_of(server.url) as client:
        task = asyncio.create_task(ask(client))
        await server.until_requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 30)
        assert client.running == 0


@on_both_loops
async def test_cut_ends_what_runs_and_what_connects() -> None:
    async with scripted([READ, HEAD + frame(CHAT[1]), HANG]) as server, client_of(server.url) as client:
        running = [asyncio.create_task(ask(client)) for _ in range(3)]
        await server.until_requests(3)
        connecting = asyncio.create_task(ask(client))
        await asyncio.sleep(0)
        assert client.running == 4
        client.cut()
        client.cut()
        made = await asyncio.gather(*running, connecting)
        assert client.running == 0
    assert [one.failure for one in made] == [Failure.CUT] * 4
    assert {digest(one).outcome for one in made} == {RequestOutcome.UNFINISHED}


@on_both_loops
async def test_a_long_stream_is_read_while_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.client.connection.LONG_STREAM_PARTS", 100)
    pieces = [f" {number:0500}" for number in range(1000)]  # half a megabyte: no loop reads that at once
    events = [frame(text(piece)) for piece in pieces]
    script: Script = [READ, HEAD, *events, frame(text("", finish="stop")), frame(DONE) + b"0\r\n\r\n", HANG]
    async with scripted(script) as server, client_of(server.url) as client:
        made = await ask(client)
    assert len(made.parts) < 1002
    found = digest(made)
    assert (found.outcome, found.text) == (RequestOutcome.OK, "".join(pieces))
    assert client.meter.chunks == 1002
