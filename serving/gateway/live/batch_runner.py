"""Finds batches that no gateway runs, and runs them at this one."""

import asyncio
from contextlib import suppress

from serving.deadline import within
from serving.errors import UnavailableError
from serving.gateway.api.batches.shelf import BatchShelf, decode_spec, state_of_item
from serving.gateway.core.batches import BatchLimits
from serving.gateway.live.running_batch import BatchHost, RunningBatch

POLL_S = 2.0
"""How often a gateway looks for batches that no gateway runs."""


class BatchRunner:
    """Finds batches that no gateway runs, and runs them."""

    def __init__(self, shelf: BatchShelf, host: BatchHost, limits: BatchLimits) -> None:
        self.limits = limits
        self._shelf = shelf
        self._host = host
        self._running: dict[str, asyncio.Task[None]] = {}
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
                with suppress(UnavailableError):
                    await self._start_some()
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
        """Claim batches as far as the limits allow."""
        for namespace, name in await self._shelf.store.unowned():
            if self._stopping or self.running >= min(self.limits.running, self.limits.requests):
                return
            item = None
            if name not in self._running:
                item = await self._shelf.store.claim(namespace, name, self._host.owner)
            value = None if item is None else await self._shelf.store.value(namespace, name)
            if item is not None and value is not None:
                share = self._share, self.limits.lines
                batch = RunningBatch(decode_spec(value), state_of_item(item), self._shelf, self._host, *share)
                self._running[name] = task = asyncio.create_task(batch.run(), name=name)
                task.add_done_callback(self._ended)

    def _share(self) -> int:
        return self.limits.share(self.running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task.get_name()]
        self._stirred.set()
