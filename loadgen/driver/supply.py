"""A worker's stock of jobs: rendered as soon as they arrive, long before they are due.

Rendering runs on the event loop, in short slices and not right before a send, to avoid delays. The stock is bounded
by credit: the main process never sends more than the worker's depth (and a number of bytes).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.client.request import PreparedRequest
from loadgen.driver.pacer import Pacer
from loadgen.plan import LoadJob

_QUIET_S = 0.0005
_SLICE_S = 0.0002
_COMFORTABLE = 64
"""Jobs in stock from which on rendering can wait."""


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """A job, and its first request ready to be written."""

    job: LoadJob
    request: PreparedRequest


class Stock:
    """Received jobs, in order.

    Attributes:
        on_ready: called after each job that became ready.
    """

    def __init__(self, render: Callable[[LoadJob], PreparedRequest], pacer: Pacer) -> None:
        """Empty.

        Args:
            render: makes a job's first request ready to be written.
        """
        self._render = render
        self._pacer = pacer
        self._raw: deque[LoadJob] = deque()
        self._ready: deque[RenderedTurn] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._complete = False
        self.on_ready: Callable[[], None] = lambda: None

    def add(self, jobs: list[LoadJob]) -> None:
        """Add received jobs."""
        self._raw.extend(jobs)
        self._idle.clear()
        self._work.set()

    def complete(self) -> None:
        """Mark the end of the jobs."""
        self._complete = True

    @property
    def complete_and_empty(self) -> bool:
        """Whether the last job has been taken."""
        return self._complete and self._idle.is_set() and not self._ready

    async def rendered(self) -> None:
        """Wait until all received jobs are rendered."""
        await self._idle.wait()

    def take(self) -> RenderedTurn | None:
        """The next job, None if there is none yet."""
        return self._ready.popleft() if self._ready else None

    async def render_all(self) -> None:
        """The worker's rendering task; never ends by itself.

        Raises: UsageError if a job does not fit the endpoint.
        """
        while True:
            self._work.clear()
            until_s = time.monotonic() + _SLICE_S
            while self._raw:
                job = self._raw.popleft()
                self._ready.append(RenderedTurn(job, self._render(job)))
                if not self._raw:
                    self._idle.set()
                self.on_ready()
                until_s = await self._breathe(until_s)
            await self._work.wait()

    async def _breathe(self, until_s: float) -> float:
        """Let others run after each slice, and, with enough in stock, a send that is near go first.

        Returns: when the next slice ends.
        """
        now_s, next_s = time.monotonic(), self._pacer.next_s
        near = next_s - now_s < _QUIET_S and len(self._ready) >= _COMFORTABLE
        if now_s < until_s and not near:
            return until_s
        if near:
            await self._pacer.sleep_until(next_s)
        await asyncio.sleep(0)
        return time.monotonic() + _SLICE_S
