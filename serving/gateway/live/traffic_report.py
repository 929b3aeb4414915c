"""A gateway's reports to the scaling board: twice a second, and immediately when a request waits for an empty pool."""

import asyncio

import ray
from msgspec.structs import replace

from serving.gateway.live.gateway_peers import GatewayPeers
from serving.gateway.live.metered_backend import MeteredBackend
from serving.kvpool.live.pool_control import Complaint
from serving.scaling.live.scaling_board import BoardClient

PERIOD_S = 0.5
TICK_S = 0.1


class TrafficReporter:
    """Sends reports until it is cancelled, and forwards the board's responses."""

    def __init__(self, backend: MeteredBackend, peers: GatewayPeers) -> None:
        """
        Args:
            peers: receives the list of other gateways.
        """
        self._backend = backend
        self._peers = peers
        self._board = BoardClient()
        self._complaint = Complaint("the scaling board does not respond; it gets no traffic reports from this gateway")

    async def run(self) -> None:
        """Report forever; failed reports are repeated."""
        known = False
        while True:
            losses = self._backend.losses
            report = replace(
                self._backend.report(asyncio.get_running_loop().time()),
                known=known,
                address=self._peers.address,
                notices=losses.notices(),
            )
            try:
                news = await self._board.report(report)
                self._backend.hear(news)
                self._peers.hear(news.peers)
                losses.reported(report.notices)
                known = True
                self._complaint.over()
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                self._backend.unheard(asyncio.get_running_loop().time())
                self._complaint.make(error)
            await self._pause(report.starved)

    async def _pause(self, starved: bool) -> None:
        """Wait until the next report is due, a request starts to wait for an instance, or an instance is lost."""
        for _ in range(round(PERIOD_S / TICK_S)):
            await asyncio.sleep(TICK_S)
            if (not starved and self._backend.starved()) or self._backend.losses.waiting:
                return
