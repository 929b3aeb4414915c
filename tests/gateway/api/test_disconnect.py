"""A client that disconnects frees its work, at every stage; no task keeps running."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel
from tests.gateway.api.client import start, until
from tests.gateway.api.support import Harness

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine, then assert that no task is left."""

    async def checked() -> None:
        async with asyncio.timeout(60):
            await test()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(checked())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_client_leaves_while_tokens_are_awaited(harness: Harness, stream: bool, after: int) -> None:
    backend, before = harness.backend, harness.metrics.outcomes["abort"]

    async def test() -> None:
        harness.script_of = lambda _: harness.say("Once upon a time", hang_after=after)
        exchange, task = start(harness.app, PATH, {**CHAT, "stream": stream, "n": 2})
        await until(lambda: bool(backend.generations) and min(backend.generations[0].delivered) >= after)
        assert not task.done()
        exchange.gone.set()
        await task
        assert harness.backend.generations[0].cancelled
        assert harness.metrics.outcomes["abort"] == before + 2
        assert harness.metrics.in_flight == 0

    run(test)


def test_client_leaves_while_a_chunk_is_being_sent(harness: Harness) -> None:
    """A reader that stopped reading blocks `send`; its disconnect must end that, too."""

    async def test() -> None:
        harness.script_of = lambda _: harness.say("Once upon a time")
        exchange, task = start(harness.app, PATH, {**CHAT, "stream": True}, slow_send=asyncio.Event().wait)
        await until(lambda: bool(harness.backend.generations))
        await asyncio.sleep(0.01)
        exchange.gone.set()
        await task
        assert harness.backend.generations[0].cancelled

    run(test)


def test_client_leaves_before_its_body_is_complete(harness: Harness) -> None:
    async def test() -> None:
        exchange, task = start(harness.app, PATH, b"", chunks=0)
        await asyncio.sleep(0.01)
        exchange.gone.set()
        await task
        assert harness.backend.jobs == []
        assert harness.metrics.in_flight == 0

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_server_that_cancels_the_request_frees_it_too(harness: Harness, stream: bool) -> None:
    """A server's shutdown and Ray Serve's request cancellation do this."""
    backend = harness.backend

    async def test() -> None:
        harness.script_of = lambda _: harness.say("Once", hang_after=1)
        _, task = start(harness.app, PATH, {**CHAT, "stream": stream})
        await until(lambda: bool(backend.generations) and backend.generations[0].delivered == [1])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert harness.backend.generations[0].cancelled

    run(test)


def test_a_client_that_stays_is_not_cancelled(harness: Harness) -> None:
    async def test() -> None:
        exchange, task = start(harness.app, PATH, CHAT, chunks=3)
        await task
        assert exchange.status == 200
        assert not harness.backend.generations[0].cancelled
        assert harness.backend.generations[0].ended

    run(test)


def test_body_limit_holds_while_reading(served: ServedModel) -> None:
    """Without Content-Length the size is known only as the body arrives."""
    harness = Harness(served, ApiSettings(max_body_bytes=1000))

    async def test() -> None:
        exchange, task = start(harness.app, PATH, b"x" * 5000, chunks=50)
        await task
        assert exchange.status == 413

    run(test)


def test_announced_size_is_refused_before_anything_is_read(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(max_body_bytes=1000))

    async def test() -> None:
        exchange, task = start(harness.app, PATH, b"", chunks=0, headers={"content-length": "1001"})
        await task
        assert exchange.status == 413

    run(test)


def test_updates_that_waited_go_out_in_one_message(harness: Harness) -> None:
    """A slow client gets all updates since its last read in one send."""

    async def test() -> None:
        harness.script_of = lambda _: harness.say("Once upon a time")
        exchange, task = start(harness.app, PATH, {**CHAT, "stream": True, "n": 3})
        await task
        rounds = len(harness.say("Once upon a time").tokens)
        bodies = [m for m in exchange.messages if m["type"] == "http.response.body"]
        assert len(bodies) <= rounds
        assert all(body["body"].endswith(b"\n\n") for body in bodies)

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads_is_given_up(served: ServedModel, stream: bool) -> None:
    harness = Harness(served, ApiSettings(request_timeout_s=0.1, deadline_grace_s=0.1))

    async def test() -> None:
        harness.script_of = lambda _: harness.say("Once upon a time")
        _, task = start(harness.app, PATH, {**CHAT, "stream": stream}, slow_send=asyncio.Event().wait)
        await task
        assert harness.metrics.in_flight == 0

    run(test)
