"""Finds batches that no gateway runs, and runs them at this one."""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from serving.deadline import within
from serving.errors import UnavailableError
from serving.gateway.api.batches.shelf import BatchShelf, decode_spec, state_of_item
from serving.gateway.core.batches import BatchKey, BatchLimits, next_batch
from serving.gateway.live.running_batch import BatchHost, RunningBatch

log = logging.getLogger(__name__)

POLL_S = 2.0
"""How often a gateway looks for batches that no gateway runs."""


class BatchRunner:
    """Finds batches that no gateway runs, and runs them."""

    def __init__(self, shelf: BatchShelf, host: BatchHost, limits: BatchLimits) -> None:
        self.limits = limits
        self._shelf = shelf
        self._host = host
        self._running: dict[BatchKey, asyncio.Task[None]] = {}
        """Tasks by namespace and id."""
        self._stirred = asyncio.Event()
        self._stopping = False
        shelf.stirred = self._stirred.set

    @property
    def running(self) -> int:
        """Number of batches that run here."""
        return len(self._running)

    async def run(self) -> None:
        """Run batches until cancelled."""
        try:
            while True:
                self._stirred.clear()
                try:
                    await self._start_some()
                except UnavailableError as error:
                    log.warning("no batches are started: %s", error)
                except Exception:  # such as a damaged item: others shall run, and this gateway shall live
                    log.exception("no batches are started")
                with suppress(TimeoutError):
                    await within(self._stirred.wait(), POLL_S)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Start no more batches, and give up those that run, so that other gateways can claim them at once."""
        self._stopping = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_some(self) -> None:
        """Claim batches as far as the limits allow; first of the tenants with the fewest that run here."""
        found = await self._shelf.store.unowned()
        while found and not self._stopping and self.running < min(self.limits.running, self.limits.requests):
            namespace, name = one = next_batch(found, self._running)
            found.remove(one)
            item = None if one in self._running else await self._shelf.store.claim(*one, self._host.owner)
            value = None if item is None else await self._shelf.store.value(namespace, name)
            if item is not None and value is not None:
                share = self._share, self.limits.lines
                batch = RunningBatch(decode_spec(value), state_of_item(item), self._shelf, self._host, *share)
                self._running[one] = task = asyncio.create_task(batch.run())
                task.add_done_callback(partial(self._ended, one))

    def _share(self) -> int:
        return self.limits.share(self.running)

    def _ended(self, one: BatchKey, _: asyncio.Task[None]) -> None:
        del self._running[one]
        self._stirred.set()
