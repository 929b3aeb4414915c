"""A draining gateway refuses new requests, completes running ones, and reports its state on every route."""

import asyncio

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from serving.gateway.api.http.access import DrainMiddleware, GatewayDrain

pytestmark = pytest.mark.asyncio


class Slow:
    """An application that responds only when released."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/chat/completions":
            await self.may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


async def test_what_runs_goes_on_and_what_is_new_is_refused() -> None:
    app, drain = Slow(), GatewayDrain()
    transport = httpx.ASGITransport(DrainMiddleware(app, drain))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/ready")).status_code == 200
        running = asyncio.create_task(client.post("/v1/chat/completions"))
        while not drain.busy:  # noqa: ASYNC110 - nobody tells when it begins
            await asyncio.sleep(0)
        drain.begin()
        for method, path in (
            ("POST", "/v1/completions"),
            ("GET", "/ready"),
            ("GET", "/-/healthz"),
            ("GET", "/v1/models"),
        ):
            refused = await client.request(method, path)
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "service_unavailable"
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert not await drain.idle(0.01)
        app.may.set()
        assert (await running).content == b"done"
        assert await drain.idle(5)


async def test_an_exchange_that_fails_is_over_too() -> None:
    async def broken(_: Scope, __: Receive, ___: Send) -> None:
        raise LookupError("a bug")

    drain = GatewayDrain()
    transport = httpx.ASGITransport(DrainMiddleware(broken, drain))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(LookupError):
            await client.get("/v1/models")
    assert await drain.idle(0)
