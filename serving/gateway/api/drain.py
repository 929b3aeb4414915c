"""Draining of a gateway: refuse new requests immediately and let those in progress finish."""

import asyncio
from contextlib import suppress
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.deadline import within
from serving.errors import UnavailableError
from serving.gateway.api.error_dialects import reply_on
from serving.gateway.api.errors import reply_for
from serving.gateway.api.generation_response import send_error

PROBES = frozenset({"/health", "/ping", "/version", "/metrics", "/load", "/cluster", "/experts"})
"""Paths served until the end, so that the drain can be observed; `/ready` and `/-/healthz` are not among them."""

RETRY_AFTER_S = 5.0
"""A replacement behind the same address takes seconds."""


class GatewayDrain:
    """Counts the exchanges of one gateway and stores whether it drains. Used from one event loop."""

    def __init__(self) -> None:
        self.begun = False
        self.busy = 0
        """Exchanges in progress, not counting probes."""
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Refuse all further requests. Idempotent."""
        self.begun = True

    def entered(self) -> None:
        """Count the start of an exchange."""
        self.busy += 1
        self._idle.clear()

    def left(self) -> None:
        """Count the end of an exchange."""
        self.busy -= 1
        if not self.busy:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until no exchange is in progress. Returns: whether that happened within `seconds`."""
        if self.busy:
            with suppress(TimeoutError):
                await within(self._idle.wait(), seconds)
        return not self.busy


class DrainMiddleware:
    """Passes and counts exchanges, or refuses them with 503 and closes their connection."""

    def __init__(self, app: ASGIApp, drain: GatewayDrain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one exchange."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._drain.begun:
            error = UnavailableError(
                "this gateway is shutting down; send the request again", retry_after_s=RETRY_AFTER_S
            )
            reply = reply_on(scope, reply_for(error))
            await send_error(send, replace(reply, headers={**reply.headers, "connection": "close"}))
            return
        self._drain.entered()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.left()
