"""Generation responses as raw ASGI responses: one object, or a stream of events.

The backend's updates are passed to `send` without the framework's response iterator or a wrapper per chunk. A watcher
of `receive` runs concurrently, because a client that disconnects must free its blocks even while no data is sent. The
HTTP status is sent with the first update, so that an earlier failure is a plain HTTP error; a stream starts before it
only if that update takes long and its form has an event for this.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving.gateway.api.backend import GenerationBackend, RequestRun
from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import Answering, WireForm
from serving.gateway.api.hints.orders import answer_keys
from serving.gateway.api.http.errors import ErrorReply, named, reply_for, reply_on
from serving.gateway.api.http.request_ids import trace_names
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.api.settings import ApiSettings
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.translate import GenerationOrder
from serving.telemetry.log_lines import REQUEST
from serving.telemetry.metrics import GatewayMetrics

log = logging.getLogger("serving.gateway.api")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not collect events
]


class GenerationResponse(Response):
    """Submits an order when the server runs it, and responds with its output.

    Args:
        before_end: awaited after the last output, before the client receives the end of the response.
        called: receives the names of the called tools before that; empty if the response ends otherwise.
        running: where the request is listed while it runs.
    """

    def __init__(
        self,
        order: GenerationOrder,
        form: WireForm,
        backend: GenerationBackend,
        tokenizer: Tokenizer,
        metrics: GatewayMetrics,
        settings: ApiSettings,
        arrived: float,
        before_end: Callable[[], Awaitable[None]] | None = None,
        running: RunningRequests | None = None,
        called: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        # The base class would build a body and headers of its own; other code reads only these three attributes.
        self.status_code = 200
        self.background = None
        self.body = b""
        self._order = order
        self._form = form
        self._backend = backend
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._settings = settings
        self._arrived = arrived
        self._before_end = before_end
        self._running = running or RunningRequests()
        self._called = called
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the response is complete, or the client leaves."""
        try:
            names, trace = trace_names(scope)
            REQUEST.set(self._order.response_id)
            run = RequestRun(self._order, self._backend, self._tokenizer, self._metrics, self._arrived, names, trace)
        except Exception as error:
            await send_error(send, reply_on(scope, reply_logged(error)))
            return
        limit_s = self._settings.request_timeout_s + self._settings.deadline_grace_s
        work = self._stream if self._order.stream else self._full
        ids = (self._order.response_id, *names)
        try:
            with self._running.entered(self._order.namespace, ids, run.cancel):
                await until_disconnect(receive, work(run, scope, send, limit_s))
        finally:
            run.close()

    async def _full(self, run: RequestRun, scope: Scope, send: Send, limit_s: float) -> None:
        answer = self._form.whole(self._answering(run))
        try:
            async with asyncio.timeout(limit_s):
                while run.open:
                    for index, out in await run.next():
                        answer.add(index, out)
                # Encoding thousands of log-probabilities takes long enough to stall other streams.
                further = {**run.replicas(), **answer_keys(self._order)}
                body = answer.body(further) if answer.short else await asyncio.to_thread(answer.body, further)
                await self._finish(run)
        except Exception as error:
            run.failed = True
            await send_error(send, reply_on(scope, reply_logged(error, self._order.response_id)))
            return
        with suppress(TimeoutError):  # the client does not read
            async with asyncio.timeout(limit_s):
                await send_json(send, 200, body)

    async def _stream(self, run: RequestRun, scope: Scope, send: Send, limit_s: float) -> None:
        encoder = self._form.events(self._answering(run))
        seconds = self._settings.keepalive_s if encoder.comments else self._settings.event_silence_s
        send_body = scope.get("state", {}).get("send_body", send)
        started = False
        try:
            async with asyncio.timeout(limit_s), self._coming(run) as coming:
                if not encoder.comments and seconds > 0:
                    await asyncio.wait((coming,), timeout=seconds)
                late = not encoder.comments and seconds > 0 and not coming.done()
                if not late:
                    await coming
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
                if late:
                    await send({"type": "http.response.body", "body": encoder.silence(), "more_body": True})
                async with self._keepalive(send, encoder.silence, seconds):
                    batch = await coming
                    while run.open:
                        if body := encoder.batch(batch):
                            self._quiet = False
                            await send_body({"type": "http.response.body", "body": body, "more_body": True})
                        batch = await run.next()
                body = encoder.batch(batch) + encoder.closing({**run.replicas(), **answer_keys(self._order)})
                await self._finish(run)
                await send({"type": "http.response.body", "body": body})
            return
        except Exception as error:
            run.failed = True
            reply = reply_logged(error, self._order.response_id)
            if not started:
                await send_error(send, reply_on(scope, reply))
                return
        with suppress(TimeoutError):  # the client does not read; that may have been the error
            async with asyncio.timeout(self._settings.deadline_grace_s):
                await send({"type": "http.response.body", "body": encoder.failure(named(scope, reply))})

    async def _finish(self, run: RequestRun) -> None:
        if self._called is not None:
            self._called({name for choice in run.choices for name in choice.called})
        if self._before_end is not None:
            await self._before_end()

    def _answering(self, run: RequestRun) -> Answering:
        timing = run.timing if self._settings.per_request_metrics else None
        return Answering(self._order, run.choices, self._tokenizer, timing)

    @asynccontextmanager
    async def _coming(self, run: RequestRun) -> AsyncIterator["asyncio.Future[list[tuple[int, Visible]]]"]:
        """The first visible output, as a future that is cancelled on exit."""
        coming = asyncio.ensure_future(run.next())
        try:
            yield coming
        finally:
            coming.cancel()

    @asynccontextmanager
    async def _keepalive(self, send: Send, beat: Callable[[], bytes], seconds: float) -> AsyncIterator[None]:
        """Within the context, call `beat` after every `seconds` without output; 0 = never."""
        pulse = asyncio.ensure_future(self._pulse(send, beat, seconds)) if seconds > 0 else None
        try:
            yield
        finally:
            if pulse is not None:
                pulse.cancel()

    async def _pulse(self, send: Send, beat: Callable[[], bytes], seconds: float) -> None:
        """Send a beat after every `seconds` without output."""
        while True:
            self._quiet = True
            await asyncio.sleep(seconds)
            if self._quiet:
                await send({"type": "http.response.body", "body": beat(), "more_body": True})


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it is done or the client disconnects, whichever is first; cancels the other task."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def reply_logged(error: Exception, response_id: str = "before its submission") -> ErrorReply:
    """The reply to an error; an internal error is logged with its traceback, which the client does not see."""
    reply = reply_for(error)
    if reply.status == 500:
        log.error("request %s failed", response_id, exc_info=error)
    return reply


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Send a complete JSON response."""
    extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": own + extra})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, reply: ErrorReply) -> None:
    """Send an error object."""
    await send_json(send, reply.status, reply.body(), reply.headers)
