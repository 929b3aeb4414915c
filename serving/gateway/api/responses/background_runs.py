"""Background responses of one gateway: those that run here, and the way to those of all gateways."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from serving.errors import OverloadedError, RequestError, ServingError, UnavailableError
from serving.gateway.api.backend import RequestRun
from serving.gateway.api.forms.form import Answering
from serving.gateway.api.generation_response import reply_logged
from serving.gateway.api.http.errors import reply_for
from serving.gateway.api.responses.background import (
    BackgroundRequest,
    BackgroundRun,
    OwnedWork,
    decode_request,
)
from serving.gateway.api.responses.form import ResponseEvents, ResponseFrame, item_stem
from serving.gateway.api.responses.items import kept_items
from serving.gateway.api.responses.kept import RESPONSE_ID, KeptResponse, ResponseNotFoundError, ResponseShelf
from serving.gateway.api.responses.resumption import encoded_event, ended_early, payload_of, split_events
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.responses.translate import SEALED_REASONING, ResponsesChat, as_chat, responses_order
from serving.gateway.api.routes import RouteServices
from serving.gateway.api.translate import GenerationOrder
from serving.gateway.api.work_store import PAGE, WorkStore
from serving.gateway.core.work_items import LeaseLostError, WorkItem
from serving.telemetry.log_lines import REQUEST
from serving.values.pool_view import namespace_salt

log = logging.getLogger("serving.gateway.api")

Json = dict[str, Any]
SWEEP_S = 1.0
"""How often a gateway looks for work without an owner."""
OVER = "the request's time is over"
GIVEN_UP = "the gateways that generated this response were lost; it was given up and must not be sent again"
MOST_LOST = 3
"""Gateways that may be lost one after the other without a further event; the request may be what kills them."""
EndedBy = tuple[str, Json | None]


@dataclass(frozen=True, slots=True)
class AcceptedBackground:
    """A translated background request.

    Args:
        names, trace: see `Answered`.
    """

    request: BackgroundRequest
    order: GenerationOrder
    frame: ResponseFrame
    names: tuple[str, ...] = ()
    trace: str = ""


class BackgroundRuns:
    """Used from the gateway's event loop; outlives the applications of one gateway, of which the last is bound.

    Args:
        owner: this gateway, unlike any other, also unlike an earlier one in its place.
        wall: Unix time [s].
        poll_s: how often events of a response in another gateway are read.
    """

    def __init__(
        self,
        store: WorkStore,
        owner: str = "",
        wall: Callable[[], float] = time.time,
        poll_s: float = 0.1,
    ) -> None:
        self.store = store
        self._owner = owner or secrets.token_hex(8)
        self._wall = wall
        self._poll_s = poll_s
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._works: dict[tuple[str, str], OwnedWork] = {}
        self._services: RouteServices | None = None
        self._shelf: ResponseShelf | None = None
        self._ended = False

    def bind(self, services: RouteServices, shelf: ResponseShelf) -> None:
        """Set what further runs use."""
        self._services, self._shelf = services, shelf

    @property
    def offered(self) -> bool:
        """Whether background responses are accepted."""
        return self.store.limits.items > 0

    # ---- from its request to its end ---------------------------------------------------------------------------------

    async def start(self, accepted: AcceptedBackground, arrived: float) -> Json:
        """Store a request, and generate its response.

        Returns: the response, queued.
        Raises: WorkFullError, OverloadedError, UnavailableError; nothing is stored or running then.
        """
        order, services = accepted.order, self._bound[0]
        namespace, name = order.namespace, order.response_id
        answering = Answering(order, [], services.model.tokenizer)
        first = split_events(ResponseEvents(answering, accepted.frame).accepted())
        await self.store.add(namespace, name, msgspec.json.encode(accepted.request), self._owner, first)
        work = OwnedWork(self.store, namespace, name, self._owner, len(first))
        try:
            run = self._submitted(accepted, arrived)
        except ServingError:
            await self.store.delete(namespace, name)
            raise
        events = [payload_of(event) for event in first]
        self._spawn(work, partial(self._run, work, accepted, run, events))
        response: Json = events[0]["response"]
        return response

    async def sweep(self) -> None:
        """Claim responses whose gateway is gone, and continue them. Raises: UnavailableError."""
        for namespace, name in await self.store.unowned():
            if self._ended or (namespace, name) in self._tasks:
                continue
            item = await self.store.claim(namespace, name, self._owner)
            if item is not None:
                work = OwnedWork(self.store, namespace, name, self._owner, item.records)
                self._spawn(work, partial(self._resume, work, item))

    async def watch(self, period_s: float = SWEEP_S) -> None:
        """Sweep for ever."""
        silent = False
        while True:
            try:
                await self.sweep()
                silent = False
            except UnavailableError as error:
                if not silent:
                    log.warning("background responses of other gateways are not looked for: %s", error)
                silent = True
            await asyncio.sleep(period_s)

    async def leave(self, seconds: float) -> None:
        """Stop, as this gateway does; responses that no other gateway can continue may run for some seconds."""
        if not self.store.shared and self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        await self.stop()

    async def stop(self) -> None:
        """Leave all responses that run here to other gateways."""
        self._ended = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: OwnedWork, running: Callable[[], Awaitable[None]]) -> None:
        key = work.namespace, work.name
        self._works[key] = work
        self._tasks[key] = asyncio.create_task(self._guarded(work, running))

    async def _guarded(self, work: OwnedWork, running: Callable[[], Awaitable[None]]) -> None:
        key = work.namespace, work.name
        REQUEST.set(work.name)
        try:
            await running()
        except asyncio.CancelledError:  # this gateway stops
            with suppress(LeaseLostError, UnavailableError):
                await work.release()
            raise
        except LeaseLostError as error:
            log.info("response %s is given up here: %s", work.name, error)
        except Exception as error:  # a bug, or the store does not respond: another gateway continues after the lease
            reply_logged(error, work.name)
        finally:
            del self._tasks[key], self._works[key]
            work.signal.set()

    def _submitted(self, accepted: AcceptedBackground, arrived: float) -> RequestRun:
        services = self._bound[0]
        tokenizer, metrics = services.model.tokenizer, services.metrics
        return RequestRun(accepted.order, services.backend, tokenizer, metrics, arrived, accepted.names, accepted.trace)

    async def _run(self, work: OwnedWork, accepted: AcceptedBackground, run: RequestRun, stored: list[Json]) -> None:
        (services, shelf), order = self._bound, accepted.order
        settings, items = services.settings, _items(accepted.request, order)
        encoder = ResponseEvents(Answering(order, run.choices, services.model.tokenizer), accepted.frame)

        async def keep(response: Json) -> None:
            await shelf.keep(work.namespace, KeptResponse(response, items))

        async def forget() -> None:
            with suppress(ResponseNotFoundError):
                await shelf.delete(work.namespace, work.name)

        running = BackgroundRun(work, run, encoder, stored, keep, forget, settings.event_silence_s)
        limit_s = accepted.request.deadline - self._wall() + settings.deadline_grace_s
        with services.running.entered(work.namespace, (work.name, *accepted.names), run.cancel):
            await running.go(max(0.0, limit_s))
        if order.hints is not None and order.hints.at_end:
            await services.hints.at_end(order.namespace, order.hints, None)()

    async def _resume(self, work: OwnedWork, item: WorkItem) -> None:
        """Continue a response, or end it if it was cancelled, has no time left, or cannot be generated here."""
        value = await self.store.value(work.namespace, work.name)
        stored = [payload_of(event) for event in await self._records(work.namespace, work.name)]
        if value is None or not stored:
            raise LeaseLostError("this work was deleted")
        request = decode_request(value)
        left_s = request.deadline - self._wall()
        log.warning("response %s lost its gateway; it continues here after event %d", work.name, len(stored) - 1)
        if item.cancelled:
            await self._end(work, request, stored, ("cancelled", None))
            return
        if left_s <= 0 or item.claims > MOST_LOST:
            message = OVER if left_s <= 0 else GIVEN_UP
            await self._end(work, request, stored, ("failed", {"code": "server_error", "message": message}))
            return
        try:
            accepted = await self._translated(work, request, stored[0]["response"], left_s)
            run = self._submitted(accepted, self._bound[0].metrics.clock())
        except (OverloadedError, UnavailableError):
            await work.release()  # the next sweep, here or elsewhere, tries again
            return
        except RequestError as error:
            failed = {"code": "server_error", "message": reply_for(error).message}
            await self._end(work, request, stored, ("failed", failed))
            return
        await self._run(work, accepted, run, stored)

    async def _translated(
        self, work: OwnedWork, request: BackgroundRequest, known: Json, left_s: float
    ) -> AcceptedBackground:
        """The order of a stored request, with the names and times of its first run."""
        services = self._bound[0]
        model, settings = services.model, services.settings
        tenant = request.tenant(work.namespace, namespace_salt(settings.pool_salt, work.namespace))

        def translated() -> tuple[ResponsesChat, GenerationOrder]:
            body = request.request()
            asked = as_chat(body, body.input, request.earlier)
            return asked, responses_order(body, asked, model, settings, tenant, request.prompt)

        asked, order = await services.texts.run(tenant, len(request.prompt), translated)
        sequences = tuple(structs.replace(one, time_left_s=left_s) for one in order.job.sequences)
        job = structs.replace(order.job, sequences=sequences)
        order = replace(order, response_id=work.name, created=request.created, job=job)
        fields = {name: value for name, value in known.items() if name not in _OWN_FIELDS}
        return AcceptedBackground(request, order, frame_of(fields, request.request(), asked))

    async def _end(self, work: OwnedWork, request: BackgroundRequest, stored: list[Json], how: EndedBy) -> None:
        """End a response that is not generated again."""
        last = ended_early(stored, *how)
        items = [*request.earlier, *kept_items(request.given, item_stem(work.name))]
        await self._bound[1].keep(work.namespace, KeptResponse(last["response"], items))
        await work.append([encoded_event(last)], done=True)

    # ---- for clients -------------------------------------------------------------------------------------------------

    async def state(self, namespace: str, name: str) -> WorkItem | None:
        """The state of a background response; None if there is none. Raises: UnavailableError."""
        known = self.offered and RESPONSE_ID.fullmatch(name)
        return await self.store.get(namespace, name) if known else None

    async def find(self, namespace: str, name: str) -> KeptResponse | None:
        """A background response as it is now; None if there is none. Raises: UnavailableError."""
        item = await self.state(namespace, name)
        if item is None:
            return None
        at = item.records - 1 if item.done else 0
        value, events = await self.store.value(namespace, name), await self.store.records(namespace, name, at, 1)
        if value is None or not events:
            return None
        request, response = decode_request(value), payload_of(events[0])["response"]
        if not item.done:
            response = {**response, "status": "cancelled" if item.cancelled else item.state or "queued"}
        return KeptResponse(response, [*request.earlier, *kept_items(request.given, item_stem(name))])

    async def cancel(self, namespace: str, name: str) -> bool:
        """Request the end of a background response. Returns: whether it was running."""
        item = await self.state(namespace, name)
        asked = item is not None and not item.done and await self.store.cancel(namespace, name)
        return bool(asked)

    async def delete(self, namespace: str, name: str) -> bool:
        """Delete a background response, which also ends it. Returns: whether there was one."""
        return await self.state(namespace, name) is not None and await self.store.delete(namespace, name)

    async def events(self, namespace: str, name: str, start: int) -> AsyncIterator[bytes]:
        """Encoded events from number `start` on, until the response ends or is deleted. Raises: UnavailableError."""
        while not self._ended:
            work = self._works.get((namespace, name))
            signal = None if work is None else work.signal
            if records := await self.store.records(namespace, name, start):
                start += len(records)
                yield b"".join(records)
                continue
            item = await self.store.get(namespace, name)
            if item is None or (item.done and item.records <= start):
                return
            if item.records > start:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s if signal is None else SWEEP_S):
                    await (asyncio.Event() if signal is None else signal).wait()

    async def ended(self, namespace: str, name: str, seconds: float) -> None:
        """Wait for the end of a response, not longer than given."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for _ in self.events(namespace, name, 0):
                    pass

    async def _records(self, namespace: str, name: str) -> list[bytes]:
        records: list[bytes] = []
        while page := await self.store.records(namespace, name, len(records)):
            records += page
            if len(page) < PAGE:
                break
        return records

    @property
    def _bound(self) -> tuple[RouteServices, ResponseShelf]:
        assert self._services is not None, "an application is bound before requests arrive"
        assert self._shelf is not None, "with its store of responses"
        return self._services, self._shelf


_OWN_FIELDS = (
    *("id", "object", "created_at", "status", "error", "incomplete_details", "model", "output", "temperature"),
    "top_p",
)
"""Fields of a response object that do not repeat its request."""


def frame_of(
    fields: Json, body: ResponsesRequest, asked: ResponsesChat, whole: Callable[[Json], None] = lambda _: None
) -> ResponseFrame:
    """Parts of a response that its request determines.

    Args:
        fields: that repeat the request.
        whole: see `ResponseFrame`.
    """
    sealed = SEALED_REASONING in (body.include or ())
    return ResponseFrame(fields, sealed, whole, asked.names, asked.compacts)


def _items(request: BackgroundRequest, order: GenerationOrder) -> list[Json]:
    return [*request.earlier, *kept_items(request.given, item_stem(order.response_id))]
