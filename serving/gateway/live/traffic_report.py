"""A gateway's reports to the scaling board: twice a second while it has requests, and immediately when one waits for an
empty pool.
"""

import asyncio
from collections.abc import Mapping

import ray
from msgspec.structs import replace

from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.errors import OverloadedError, UnavailableError
from serving.gateway.core.losses import Losses
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.gateway_peers import GatewayPeers
from serving.gateway.live.generation import LiveGeneration
from serving.kvpool.live.pool_control import Complaint
from serving.scaling.live.scaling_board import BoardClient
from serving.values.jobs import GenerationJob
from serving.values.sequence import BACKGROUND_PRIORITY
from serving.values.system_tally import HostRow, SystemTally
from serving.values.traffic import BoardReply, GatewayReport, TrafficMeter

# A gateway's backend with a meter: counts every request and its outcome.


class MeteredBackend:
    """`GenerationBackend` that counts the requests of a `LiveBackend`. Used from the gateway's event loop.

    Background requests are not counted: they have no SLO, and wait for capacity that is there anyway.

    Args:
        pools: replicas requested at the start, by engine pool.
        waits: called when a request waits for a role that has no instance.
    """

    def __init__(self, backend: LiveBackend, meter: TrafficMeter, pools: Mapping[str, int], *, waits: bool) -> None:
        self._backend = backend
        self._meter = meter
        self._pools = tuple(pools)
        self._waits = waits
        self.targets = dict(pools)
        """Current replica targets by pool, as last reported to this gateway."""
        self._reply = BoardReply({})
        self._unheard_since: float | None = None

    def submit(self, job: GenerationJob) -> LiveGeneration:
        """Submit a job and count it, see `GenerationBackend.submit`.

        Raises: OverloadedError, UnavailableError as the backend does.
        """
        if job.sequences[0].priority >= BACKGROUND_PRIORITY:
            return self._backend.submit(job)
        prompt_tokens = sum(len(spec.prompt) for spec in job.sequences)
        try:
            generation = self._backend.submit(job)
        except (OverloadedError, UnavailableError):
            self._meter.refused(prompt_tokens)
            raise
        generation.meter = self._meter.accepted(prompt_tokens, generation.submitted)
        if generation.closed:
            generation.meter.end()
        return generation

    def configure(self, config: ServeConfig) -> None:
        """Apply the keys of another configuration that a running gateway accepts."""
        self._waits = config.gateway.role_wait_s > 0
        self._meter.set_slo(config.slo.ttft_s, config.slo.tpot_s)
        self._backend.configure(config)

    def ready(self) -> bool:
        """Whether a request can be served; also true of a system scaled to zero, if a request waits and so wakes it."""
        return self._backend.ready() or (self._waits and any(pool in self._reply.asleep for pool in self._pools))

    def starved(self) -> bool:
        """Whether a request waits for a role that has no instance."""
        return self._backend.starved

    async def next_stir(self, patience_s: float) -> bool:
        """Wait while there are no requests, until one is submitted or an instance comes or is lost.

        Returns: False if nothing happened within `patience_s`.
        """
        if self._backend.busy:
            return True
        self._backend.stirred.clear()
        try:
            await within(self._backend.stirred.wait(), patience_s)
        except TimeoutError:
            return False
        return True

    def on_reply(self, reply: BoardReply) -> None:
        """Process the board's response to a report."""
        self._unheard_since = None
        self.targets.update(reply.targets)
        self._backend.expect(self.targets)
        self._reply = reply

    def unheard(self, now: float) -> None:
        """Note that the board did not respond to a report, at a time of a monotonic clock [s]."""
        self._unheard_since = now if self._unheard_since is None else self._unheard_since

    def board_silent_s(self, now: float) -> float | None:
        """Time since the board last responded [s], during which no pool is scaled; None = it responds."""
        return None if self._unheard_since is None else now - self._unheard_since

    @property
    def losses(self) -> Losses:
        """Instances that this gateway lost."""
        return self._backend.losses

    @property
    def tally(self) -> SystemTally | None:
        """Counts of the whole system in the board's last response; None = it has not responded yet."""
        return self._reply.tally

    @property
    def hosts(self) -> tuple[HostRow, ...]:
        """Hosts of the cluster in the board's last response."""
        return self._reply.hosts

    @property
    def gateways(self) -> int:
        """Number of gateways, including this one."""
        return 1 + self._reply.others

    def counts(self) -> dict[str, int]:
        """Counts of all gateways: this one's `LiveBackend.counts`, plus the others' in the board's last response."""
        counts = self._backend.counts()
        counts["running"] += self._reply.others_running
        counts["queued"] += self._reply.others_queued
        return counts

    def report(self, now: float) -> GatewayReport:
        """All counts so far, and the current queue.

        Args:
            now: gateway time [s].
        """
        queued, tokens, _ = self._backend.waiting()
        return self._meter.report(now, queued, tokens, starved=self._backend.starved)


# A gateway's reports to the scaling board.

PERIOD_S = 0.5
IDLE_PERIOD_S = 2.0
"""Without requests; less than half the silence after which the board ignores a gateway."""
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
                reply = await self._board.report(report)
                self._backend.on_reply(reply)
                self._peers.set_peers(reply.peers)
                losses.reported(report.notices)
                known = True
                self._complaint.over()
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                self._backend.unheard(asyncio.get_running_loop().time())
                self._complaint.make(error)
            await self._pause(report.starved)

    async def _pause(self, starved: bool) -> None:
        """Wait until the next report is due, a request starts to wait for an instance, or an instance is lost."""
        if not self._backend.losses.waiting and not await self._backend.next_stir(IDLE_PERIOD_S):
            return
        for _ in range(round(PERIOD_S / TICK_S)):
            await asyncio.sleep(TICK_S)
            if (not starved and self._backend.starved()) or self._backend.losses.waiting:
                return
