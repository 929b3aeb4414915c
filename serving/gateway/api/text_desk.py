"""Work on texts, from characters to tokens and back: a limited amount concurrently, the rest in a fair, bounded queue.

A text takes over a hundred times its size in memory while it is tokenized, and the pools' admission limits its client
only afterwards. So it first waits here, in an `AdmissionQueue` of bytes instead of tokens.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving.allocator import return_freed_memory
from serving.errors import OverloadedError
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.settings import ApiSettings
from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.gateway_admission import AdmissionLimits, QueuedRequest
from serving.values.sequence import BACKGROUND_PRIORITY

T = TypeVar("T")

UNIT_BYTES = 256 << 10
UNITS = 16
"""Units in work concurrently: that many short texts, or one of a few megabytes."""
MOST_WAITING = 1024
WAITING_BODIES = 8
"""Bytes that may wait, in bodies of the largest size."""
RETURN_BYTES = 1 << 20
"""Texts from this size on: their memory is returned to the operating system, which the C library would not do."""


class TextDesk:
    """Queue of one gateway."""

    def __init__(self, settings: ApiSettings, clock: Callable[[], float]) -> None:
        keys = len(settings.api_key_hashes) + len(settings.admin_key_hashes)
        keys += sum(len(one.key_hashes) for one in settings.namespaces)
        limits = AdmissionLimits(MOST_WAITING, WAITING_BODIES * settings.max_body_bytes, UNITS, shared=keys > 1)
        self._queue = AdmissionQueue(limits)
        self._patience_s = settings.request_timeout_s
        self._clock = clock
        self._threads = ThreadPoolExecutor(UNITS, thread_name_prefix="texts")
        self._turns: dict[int, tuple[asyncio.Future[None], int]] = {}
        """Units of waiting requests, with the futures that start them."""
        self._units: dict[int, int] = {}
        """Units of running requests."""
        self._serial = 0

    @property
    def busy(self) -> tuple[int, int]:
        """Units in work, and waiting texts."""
        return sum(self._units.values()), len(self._turns)

    async def run(self, tenant: Tenant, size: int, work: Callable[[], T]) -> T:
        """Run `work` in a thread when it is this tenant's turn.

        Args:
            size: approximate size of the text [bytes].
        Raises: OverloadedError if too much is waiting; TimeoutError; any exception of `work`.
        """
        self._serial += 1
        number = self._serial
        units = -(-size // UNIT_BYTES) or 1
        await self._turn(number, units, size, tenant)
        began = self._clock()
        done = self._threads.submit(_tidily, size, work)
        loop = asyncio.get_running_loop()
        done.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finished, number, began))
        return await asyncio.wrap_future(done)

    async def _turn(self, number: int, units: int, size: int, tenant: Tenant) -> None:
        now = self._clock()
        key, priority = (f"{tenant.key}/background", BACKGROUND_PRIORITY) if tenant.background else (tenant.key, 0)
        mark = hash((key, size, units)) & (2**63 - 1)
        one = QueuedRequest(number, units, max(1, size), 0, now + self._patience_s, key, tenant.weight, priority, mark)
        decision = self._queue.offer(one, self.busy[0], now)
        if not decision.accepted:
            raise OverloadedError("too much text is waiting to be tokenized", retry_after_s=decision.retry_after_s)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[number] = turn, units
        self._let_in()
        try:
            async with asyncio.timeout(self._patience_s):
                await turn
        except BaseException:
            self._turns.pop(number, None)
            self._queue.withdraw(number)
            if self._units.pop(number, None) is not None:
                self._let_in()
            raise

    def _let_in(self) -> None:
        while (number := self._queue.take(self.busy[0], self._clock())) is not None:
            turn, self._units[number] = self._turns.pop(number)
            if not turn.done():  # otherwise its task was cancelled, and releases the units
                turn.set_result(None)

    def _finished(self, number: int, began: float) -> None:
        if self._units.pop(number, None) is not None:
            self._queue.finished(max(0.0, self._clock() - began))
            self._let_in()


def _tidily(size: int, work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        if size >= RETURN_BYTES:
            return_freed_memory()
