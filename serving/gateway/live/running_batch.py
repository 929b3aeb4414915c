"""Runs a batch: by one gateway at a time, line by line, through this gateway's own HTTP application.

A line is an ordinary request of its tenant, but in the background: it waits behind the requests of all other clients,
and none is started while any of them waits at this gateway. The batch and its two files are leased to this gateway. If
it dies, another one claims them when the leases have run out, reads which lines have a result, and runs the others. An
old owner that returns cannot append results any more, so no line has two.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.types import ASGIApp

from serving.deadline import within
from serving.errors import ServingError, UnavailableError
from serving.gateway.api.batches.files import StorageFullError
from serving.gateway.api.batches.input_lines import (
    InputFile,
    error_code,
    expired_line,
    line_body,
    number_of,
    read_input,
    result_line,
)
from serving.gateway.api.batches.line_request import LineReply, ask_app
from serving.gateway.api.batches.shelf import BatchShelf, state_text
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.core.batches import BatchLedger, BatchSpec, BatchState, BatchStatus, LineError
from serving.gateway.core.work_items import LeaseLostError, WorkItem

log = logging.getLogger(__name__)

BUSY_POLL_S = 0.2
"""How often a batch looks whether other requests still wait at this gateway."""
SHORTEST_PAUSE_S = 0.01
RETRY_STORE_S = 1.0
BEATS_PER_LEASE = 3
EXPIRED_AT_ONCE = 500
"""Lines that are appended to an error file together."""

_RESULTS_LOST = "the file for the results of this batch was deleted, or another gateway writes it"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchHost:
    """A gateway as its batches see it.

    Args:
        owner: name of the gateway in leases.
        app: its HTTP application.
        salt_of: salt of a namespace, see `Tenant`.
        busy: whether requests of other clients wait at this gateway.
        line_limit_s: time after which a line without a response is stopped.
        clock: Unix time [s].
    """

    owner: str
    app: ASGIApp
    salt_of: Callable[[str], bytes]
    busy: Callable[[], bool]
    line_limit_s: float
    clock: Callable[[], float]


class RunningBatch:
    """One batch that this gateway has claimed.

    Args:
        state: as stored.
        share: returns how many of its lines may run at once.
        most_lines: of an input file.
    """

    def __init__(
        self,
        spec: BatchSpec,
        state: BatchState,
        shelf: BatchShelf,
        host: BatchHost,
        share: Callable[[], int],
        most_lines: int,
    ) -> None:
        self.spec = spec
        self.ledger = BatchLedger(spec, state)
        self._store = shelf.store
        self._files = shelf.files
        self._host = host
        self._share = share
        self._most_lines = most_lines
        self._own = (spec.output_file_id, spec.error_file_id)
        self._records = dict.fromkeys(self._own, 0)
        """Records of each file, as far as this gateway knows them."""
        self._writing = asyncio.Lock()
        self._input: InputFile | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: dict[int, asyncio.Task[LineReply]] = {}
        """Lines without a response yet, by number."""
        self._woken = asyncio.Event()
        self._refusal: LineError | None = None
        """Why results cannot be stored any more."""
        self._beat_at = 0.0

    async def run(self) -> None:
        """Run it to its end, or until another gateway has it. Effects: gives up the leases if cancelled."""
        name = self.spec.batch_id
        try:
            await self._to_the_end()
            log.info("batch %s: %s", name, self.ledger.state.status)
        except LeaseLostError as error:
            log.warning("batch %s ends here: %s", name, error)
        except asyncio.CancelledError:
            await self._abandon_lines()
            await self._release()
            raise
        except Exception:
            log.exception("batch %s failed; it is tried again when its lease has run out", name)
        finally:
            await self._abandon_lines()

    async def _to_the_end(self) -> None:
        await self._beat()
        for file_id in self._own:
            while not await self._claim(file_id):  # its former owner died less than a lease ago
                await asyncio.sleep(self._files.lease_s / BEATS_PER_LEASE)
                await self._beat()
        await self._read()
        if self.ledger.state.ended:  # refused: nothing was run
            for file_id in self._own:
                await self._answer(lambda one=file_id: self._files.discard(self.spec.namespace, one))  # type: ignore[misc]
            await self._write(done=True)
            return
        await self._beat()
        await self._run_lines()
        await self._finalize()

    async def _claim(self, file_id: str) -> bool:
        """Whether this gateway owns a file now, or there is none any more, because its batch was nearly over."""
        namespace, owner = self.spec.namespace, self._host.owner
        if await self._answer(lambda: self._files.claim(namespace, file_id, owner)):
            return True
        return not await self._answer(lambda: self._files.there(namespace, file_id))

    async def _read(self) -> None:
        """Read the input, and which of its lines have a result."""
        spec, ledger, now = self.spec, self.ledger, self._host.clock()
        text = await self._answer(lambda: self._files.content(spec.namespace, spec.input_file_id))
        if not text:
            message = f"the input file '{spec.input_file_id}' was deleted or has expired"
            ledger.refuse((LineError("input_file_not_found", message, "input_file_id"),), now)
            return
        found = await asyncio.to_thread(read_input, text, spec.endpoint, self._most_lines)
        if not isinstance(found, InputFile):
            ledger.refuse(found, now)
            return
        self._input = found
        ledger.has_input(len(found), now)
        for file_id in self._own:
            for record in await self._answer(lambda one=file_id: self._new_records(one)):  # type: ignore[misc]
                ledger.done(number_of(record), failed=file_id == spec.error_file_id)

    # ---- lines -------------------------------------------------------------------------------------------------------

    async def _run_lines(self) -> None:
        """Run lines until the batch must end, then stop those that still run."""
        ledger, host = self.ledger, self._host
        while True:
            now = host.clock()
            if now >= self._beat_at:
                await self._beat()
            if self._refusal is not None:
                ledger.refuse((self._refusal,), now)
            if ledger.due_end(now) is not None:
                break
            self._woken.clear()
            share = self._share()
            while ledger.running < share and not host.busy() and (line := ledger.start(now)) is not None:
                task = asyncio.create_task(self._line(line))
                self._tasks.add(task)
                task.add_done_callback(self._line_ended)
            with suppress(TimeoutError):
                await within(self._woken.wait(), self._pause_s(now))
        for sent in self._sent.values():  # those with a response are still stored, so that it is known which are
            sent.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._beat()

    def _pause_s(self, now: float) -> float:
        """How long to sleep unless a line ends."""
        due = min(self._beat_at, self.spec.expires, self.ledger.next_retry or self._beat_at)
        longest = BUSY_POLL_S if self._host.busy() else self._files.lease_s
        return max(SHORTEST_PAUSE_S, min(longest, due - now))

    def _line_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._beat_at = 0.0  # if the lease is lost, the next beat tells
            if not isinstance(error, LeaseLostError):
                log.error("a line of batch %s failed", self.spec.batch_id, exc_info=error)

    async def _line(self, number: int) -> None:
        """Send one line, and store its result if the response is one."""
        spec, ledger, host = self.spec, self.ledger, self._host
        assert self._input is not None, "lines run after the input was read"
        try:
            one = self._input.line(number)
            sent = self._sent[number] = asyncio.create_task(self._send(number, line_body(spec, number, one.body)))
            try:
                reply = await sent
            finally:
                sent.cancel()
                del self._sent[number]
            code = None if reply.status == 200 else error_code(reply.body)
            if ledger.judge(number, reply.status, code, host.clock(), reply.retry_after_s):
                text, failed = result_line(spec, number, one.custom_id, reply.status, reply.request_id, reply.body)
                await self._append(self._own[failed], [text])
                ledger.done(number, failed=failed)
        except StorageFullError as error:
            self._refusal = LineError("storage_full", str(error))
        except LeaseLostError:  # of a file alone, unless the next write of the batch tells otherwise
            self._refusal = self._refusal or LineError("results_lost", _RESULTS_LOST)
            raise
        finally:
            ledger.drop(number, host.clock())

    async def _send(self, number: int, body: bytes) -> LineReply:
        """The application's response to a line. One that takes too long counts as a deadline."""
        spec, host = self.spec, self._host
        salt, name = host.salt_of(spec.namespace), f"{spec.batch_id}-{number}"
        tenant = Tenant(spec.namespace, salt, key=spec.key, weight=spec.weight, background=True)
        try:
            return await within(ask_app(host.app, tenant, spec.endpoint, body, name), host.line_limit_s)
        except TimeoutError:
            return LineReply(408, _failure("request_timeout"), name)
        except Exception:
            log.exception("a line of batch %s failed", spec.batch_id)
            return LineReply(500, _failure("internal_error"), name)

    async def _abandon_lines(self) -> None:
        """Stop all lines. Whether results on their way were stored, the next gateway will see."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def _finalize(self) -> None:
        """Complete the files, and end the batch. A gateway that takes over here does the same again."""
        namespace, ledger, host = self.spec.namespace, self.ledger, self._host
        end = ledger.due_end(host.clock())
        assert end is not None, "the last line has ended"
        ledger.finalize(end, host.clock())
        await self._beat()
        if end is BatchStatus.EXPIRED and self._input is not None:
            await self._expire(self._input)
        output, errors = [
            await self._answer(lambda one=file_id: self._files.close(namespace, one, host.owner))  # type: ignore[misc]
            for file_id in self._own
        ]
        ledger.finish(host.clock(), output=output, errors=errors)
        await self._write(done=True)

    async def _expire(self, lines: InputFile) -> None:
        """Write a line to the error file for each request without a result, as far as there is room."""
        spec, ledger, left = self.spec, self.ledger, list(self.ledger.open_lines())
        try:
            for start in range(0, len(left), EXPIRED_AT_ONCE):
                some = left[start : start + EXPIRED_AT_ONCE]
                texts = [expired_line(spec, number, lines.line(number).custom_id) for number in some]
                await self._append(spec.error_file_id, texts)
                for number in some:
                    ledger.done(number, failed=True)
        except StorageFullError as error:
            log.warning("batch %s: not all expired lines are in its error file: %s", spec.batch_id, error)

    # ---- the store ---------------------------------------------------------------------------------------------------

    async def _append(self, file_id: str, texts: Sequence[bytes]) -> None:
        """Append results once, although a store that does not answer may have appended them.

        Raises: LeaseLostError, StorageFullError.
        """
        own = self.spec.namespace, file_id, self._host.owner
        async with self._writing:
            at = self._records[file_id]
            self._records[file_id] = await self._answer(lambda: self._files.append(*own, texts, at))

    async def _new_records(self, file_id: str) -> list[bytes]:
        """Records that this gateway does not know yet."""
        pages = self._files.records(self.spec.namespace, file_id, self._records[file_id])
        found = [record async for page in pages for record in page]
        self._records[file_id] += len(found)
        return found

    async def _beat(self) -> None:
        """Write the state, extend the leases, and learn whether the batch was cancelled. Raises: LeaseLostError."""
        namespace, owner = self.spec.namespace, self._host.owner
        item = await self._write()
        for file_id in self._own:
            with suppress(LeaseLostError):  # not claimed yet, or gone
                await self._answer(lambda one=file_id: self._files.append(namespace, one, owner))  # type: ignore[misc]
        self._beat_at = self._host.clock() + self._files.lease_s / BEATS_PER_LEASE
        if item.cancelled:
            self.ledger.cancel(self._host.clock())

    async def _write(self, *, done: bool = False) -> WorkItem:
        spec, owner, text = self.spec, self._host.owner, state_text(self.ledger.state)
        return await self._answer(
            lambda: self._store.append(spec.namespace, spec.batch_id, owner, state=text, done=done)
        )

    async def _answer(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a store, which is asked again while it does not answer.

        Raises: LeaseLostError, StorageFullError.
        """
        while True:
            try:
                return await call()
            except UnavailableError as error:
                log.warning("batch %s waits: %s", self.spec.batch_id, error)
                await asyncio.sleep(RETRY_STORE_S)

    async def _release(self) -> None:
        """Write the state, and give up the leases. A failure only means that others wait until they run out."""
        spec, owner = self.spec, self._host.owner
        with suppress(ServingError, LeaseLostError):
            await self._store.append(spec.namespace, spec.batch_id, owner, state=state_text(self.ledger.state))
            for file_id in self._own:
                await self._files.release(spec.namespace, file_id, owner)
            await self._store.release(spec.namespace, spec.batch_id, owner)


def _failure(code: str) -> bytes:
    """An error's body, for a line whose request had no response at all."""
    error = {"message": "the request had no response", "type": "server_error", "param": None, "code": code}
    return msgspec.json.encode({"error": error})
