"""Requests cancelled by other requests: their clients get an error, their work is freed."""

import asyncio
import json
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from tests.gateway.api.client import start, until
from tests.gateway.api.support import Harness, check, post

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "request_id": "mine"}


@pytest.fixture
def cancellable(served: ServedModel) -> Harness:
    """With metrics of its own, to count."""
    return Harness(served)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 2])
def test_a_running_request_ends_with_an_error(cancellable: Harness, stream: bool, after: int) -> None:
    """Before the first token as an HTTP error, in a stream as its last event."""

    async def test() -> None:
        harness = cancellable
        harness.script_of = lambda _: harness.say("Once upon a time", hang_after=after)
        exchange, task = start(harness.app, "/v1/chat/completions", {**CHAT, "stream": stream})
        await until(
            lambda: bool(harness.backend.generations) and min(harness.backend.generations[0].delivered) >= after
        )
        await asyncio.sleep(0.01)
        canceller, ended = start(harness.app, "/v1/requests/mine/cancel", {})
        await ended
        assert canceller.status == 200
        await task
        assert exchange.status == (200 if stream and after else 400)
        told = exchange.body.decode()
        error = json.loads(told.split("data: ")[-2] if stream and after else told)["error"]
        assert (error["code"], error["type"]) == ("request_cancelled", "invalid_request_error")
        assert harness.backend.generations[0].cancelled
        assert (harness.metrics.outcomes["abort"], harness.metrics.in_flight) == (1, 0)

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_what_does_not_run_is_not_cancelled(cancellable: Harness) -> None:
    post(cancellable.app, "/v1/chat/completions", CHAT)
    check(post(cancellable.app, "/v1/requests/mine/cancel", {}), 404, None, "not_found")
    reply = post(cancellable.app, "/abort_requests", {"request_ids": ["mine", "other"]})
    assert reply.json() == {"aborted": []}


@pytest.mark.parametrize(
    ("ids", "param"),
    [([], "request_ids"), (["x"] * 1001, "request_ids"), (["x" * 129], "request_ids[0]"), ([1], "request_ids[0]")],
)
def test_bad_lists_are_refused(cancellable: Harness, ids: list[Any], param: str) -> None:
    check(post(cancellable.app, "/abort_requests", {"request_ids": ids}), 400, param)
