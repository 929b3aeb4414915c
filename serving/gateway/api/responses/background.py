"""One background response: generated without its client, each event stored before anybody receives it.

order ──► RequestRun ──► ResponseEvents ──► Resumption ──► store of work ──► clients, through any gateway
                                            (new ones)     (one write per frame, by the owner only)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from pydantic import ValidationError

from serving.errors import UnavailableError
from serving.gateway.api.backend import RequestRun
from serving.gateway.api.generation_response import reply_logged
from serving.gateway.api.hints.orders import answer_keys
from serving.gateway.api.http.errors import from_validation
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.responses.form import ResponseEvents
from serving.gateway.api.responses.resumption import ContinuedEvents, payload_of
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.running_requests import RequestCancelledError
from serving.gateway.api.work_store import WorkStore
from serving.gateway.core.work_items import LeaseLostError, WorkItem

log = logging.getLogger("serving.gateway.api")

RUNNING = "in_progress"
"""State of an item whose generation has started."""
BEATS = 3
"""Writes during one lease, of an owner without other writes."""
END_S = 30.0
"""How long the end of a response is tried to be stored; another gateway continues it after that."""
AGAIN_S = 0.5
"""Pause before a write is tried again, as the store does not respond."""

Json = dict[str, Any]


class BackgroundRequest(msgspec.Struct, frozen=True):
    """A stored request, from which any gateway can generate the same response.

    Args:
        body: its fields, with a seed, and with `input` free of references.
        earlier: items of the conversation that it continues.
        prompt: token ids.
        created: of the response [Unix time, s].
        deadline: of all runs together [Unix time, s].
        key, weight, sees_system: of its tenant.
    """

    body: Json
    earlier: list[Json]
    prompt: list[int]
    created: int
    deadline: float
    key: str
    weight: float
    sees_system: bool

    def tenant(self, namespace: str, salt: bytes) -> Tenant:
        """The tenant that sent it, without its key's other rights."""
        return Tenant(namespace, salt, key=self.key, weight=self.weight, alone=self.sees_system)

    @property
    def given(self) -> str | list[object]:
        """The request's input."""
        given: str | list[object] = self.body["input"]
        return given

    def request(self) -> ResponsesRequest:
        """The request. Raises: InvalidRequestError if another release has stored what this one refuses."""
        try:
            return ResponsesRequest.model_validate(self.body)
        except ValidationError as error:
            raise from_validation(error) from error


decode_request = msgspec.json.Decoder(BackgroundRequest).decode


class OwnedWork:
    """An item that this gateway runs."""

    def __init__(self, store: WorkStore, namespace: str, name: str, owner: str, records: int) -> None:
        self.namespace = namespace
        self.name = name
        self.records = records
        """Number of its records, as far as this gateway knows."""
        self.signal = asyncio.Event()
        """Set by the next write, which replaces it."""
        self._store = store
        self._owner = owner

    @property
    def lease_s(self) -> float:
        """How long it stays with an owner that does not write [s]."""
        return self._store.limits.lease_s

    async def append(self, records: Sequence[bytes] = (), *, state: str | None = None, done: bool = False) -> WorkItem:
        """Append records and wake readers in this process; tried again while the store does not respond.

        Raises: LeaseLostError, WorkFullError.
        """
        known = self.namespace, self.name, self._owner
        while True:
            try:
                item = await self._store.append(*known, records, state=state, done=done, at=self.records)
            except UnavailableError as error:
                log.warning("response %s waits: %s", self.name, error)
                await asyncio.sleep(AGAIN_S)
                continue
            self.records = item.records
            signal, self.signal = self.signal, asyncio.Event()
            signal.set()
            return item

    async def release(self) -> None:
        """Leave it to another gateway."""
        await self._store.release(self.namespace, self.name, self._owner)

    async def known(self) -> bool:
        """Whether it is still stored."""
        return await self._store.get(self.namespace, self.name) is not None


class BackgroundRun:
    """Generates one response.

    Args:
        stored: its events so far.
        keep: stores the finished response with its conversation; forget: undoes that.
        silence_s: an event is stored after this time without one; 0 = never.
    """

    def __init__(
        self,
        work: OwnedWork,
        run: RequestRun,
        encoder: ResponseEvents,
        stored: Sequence[Json],
        keep: Callable[[Json], Awaitable[None]],
        forget: Callable[[], Awaitable[None]],
        silence_s: float,
    ) -> None:
        self._work = work
        self._run = run
        self._encoder = encoder
        self._events = ContinuedEvents(encoder, stored)
        self._keep = keep
        self._forget = forget
        self._silence_s = silence_s
        self._beat_s = work.lease_s / BEATS
        self._wrote = self._told = asyncio.get_running_loop().time()
        """Time of the last write, and of the last event."""

    async def go(self, limit_s: float) -> None:
        """Run to the end: completion, failure or cancellation.

        Raises: LeaseLostError: another gateway has it, or it was deleted. TimeoutError: the store does not respond.
        """
        last, failed = None, self._encoder.cancelled
        try:
            try:
                async with asyncio.timeout(limit_s):
                    last = await self._generate()
            except LeaseLostError:
                raise
            except RequestCancelledError:
                pass
            except Exception as error:
                self._run.failed = True
                failed = partial(self._encoder.failure, reply_logged(error, self._work.name))
            async with asyncio.timeout(END_S):
                await self._end(last, failed)
        finally:
            self._run.close()

    async def _generate(self) -> bytes:
        """Store all events but the last. Returns: those of the end."""
        self._events.fresh(self._encoder.accepted())  # stored since the request was accepted
        coming = asyncio.ensure_future(self._run.next())
        try:
            while True:
                done, _ = await asyncio.wait((coming,), timeout=self._beat_s)
                if not done:
                    await self._beat()
                    continue
                events = self._encoder.batch(coming.result())
                if not self._run.open:
                    return events + self._encoder.closing({**self._run.replicas(), **answer_keys(self._run.order)})
                coming = asyncio.ensure_future(self._run.next())
                await self._write(events)
        finally:
            coming.cancel()

    async def _write(self, body: bytes) -> None:
        events = self._events.fresh(body)
        if events or self._now() - self._wrote >= self._beat_s:
            await self._store(events, state=RUNNING)

    async def _beat(self) -> None:
        """Extend the lease; after a long silence also with an event, for clients that wait for one."""
        silent = self._silence_s > 0 and self._now() - self._told >= self._silence_s
        await self._store(self._events.silence() if silent else [])

    async def _store(self, events: Sequence[bytes], state: str | None = None) -> None:
        item = await self._work.append(events, state=state)
        self._wrote = self._now()
        self._told = self._wrote if events else self._told
        if item.cancelled:
            self._run.cancel()
            raise RequestCancelledError("the response was cancelled")

    async def _end(self, last: bytes | None, failed: Callable[[], bytes]) -> None:
        """Store the response, then its last events: `last`, or those of `failed`."""
        item = await self._work.append()  # before the response is stored beside the work: it may have been deleted
        if last is None:  # numbered events may not have been stored
            self._events.count_from(item.records)
        events = self._events.fresh(failed() if last is None else last)
        await self._keep(payload_of(events[-1])["response"])
        try:
            await self._work.append(events, done=True)
        except LeaseLostError:
            if not await self._work.known():
                await self._forget()
            raise

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
