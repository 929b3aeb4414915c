"""Times at which the system would not have served a request, from `/ready`, polled four times a second."""

import asyncio
import time

from serving.errors import UnavailableError
from serving.http_client import ask_gateway
from serving.tools.chaos.result import ChaosRun, Down

PERIOD_S = 0.25
DEADLINE_S = 2.0
"""An answer that takes longer is none."""


class Downtime:
    """Fills `run.downs`."""

    def __init__(self, run: ChaosRun, url: str, api_key: str | None) -> None:
        self._run = run
        self._url = url
        self._api_key = api_key
        self._ready_s = time.monotonic()
        """Time of the last ready poll: a downtime starts at it."""
        self._down: Down | None = None

    async def ask_forever(self) -> None:
        """Poll until cancelled."""
        self._ready_s = time.monotonic()
        while True:
            await self.ask()
            await asyncio.sleep(PERIOD_S)

    async def ask(self) -> None:
        """Poll once. Effects: a downtime starts, is extended or ends."""
        ready = await asyncio.to_thread(self._is_ready)
        now = time.monotonic()
        if not ready and self._down is None:
            self._down = Down(self._ready_s, now)
            self._run.downs.append(self._down)
        if self._down is not None:
            self._down.ended_s = now
        if ready:
            self._ready_s, self._down = now, None

    def _is_ready(self) -> bool:
        try:
            ask_gateway(self._url, "/ready", self._api_key, deadline_s=DEADLINE_S)
        except UnavailableError:
            return False
        return True
