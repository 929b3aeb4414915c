"""A gateway's backend with a meter on it: every request that goes in is counted, and what becomes of it."""

from collections.abc import Mapping

from serving.config.serve import ServeConfig
from serving.errors import OverloadedError, UnavailableError
from serving.gateway.core.losses import Losses
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.generation import LiveGeneration
from serving.values.hosts import HostRow
from serving.values.jobs import GenerationJob
from serving.values.system_tally import SystemTally
from serving.values.traffic import BoardNews, GatewayReport, TrafficMeter


class MeteredBackend:
    """Implements `GenerationBackend` on top of a `LiveBackend`. Belongs to the gateway's event loop.

    Args:
        pools: replicas asked for at the start, by engine pool.
        waits: a request waits for a role that has no instance.
    """

    def __init__(self, backend: LiveBackend, meter: TrafficMeter, pools: Mapping[str, int], *, waits: bool) -> None:
        self._backend = backend
        self._meter = meter
        self._pools = tuple(pools)
        self._waits = waits
        self.targets = dict(pools)
        """Replicas asked for now, by pool, as far as this gateway has heard."""
        self._news = BoardNews({})
        self._unheard_since: float | None = None

    def submit(self, job: GenerationJob) -> LiveGeneration:
        """Implements `GenerationBackend.submit`.

        Raises: OverloadedError, UnavailableError as the backend does.
        """
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
        """Go on with another configuration, as far as a running gateway can."""
        self._waits = config.gateway.role_wait_s > 0
        self._meter.promise(config.slo.ttft_s, config.slo.tpot_s)
        self._backend.configure(config)

    def ready(self) -> bool:
        """Implements `GenerationBackend.ready`; a system that sleeps is ready, too, where a request waits and so wakes
        it.
        """
        return self._backend.ready() or (self._waits and any(pool in self._news.asleep for pool in self._pools))

    def starved(self) -> bool:
        """Whether a request waits for a role that has no instance."""
        return self._backend.starved

    def hear(self, news: BoardNews) -> None:
        """The board has answered a report."""
        self._unheard_since = None
        self.targets.update(news.targets)
        self._backend.expect(self.targets)
        self._news = news

    def unheard(self, now: float) -> None:
        """The board has not answered a report, at a time of a monotonic clock [s]."""
        self._unheard_since = now if self._unheard_since is None else self._unheard_since

    def board_silent_s(self, now: float) -> float | None:
        """How long the board has not answered [s]; None = it does. So long nobody scales. Effects: none."""
        return None if self._unheard_since is None else now - self._unheard_since

    @property
    def losses(self) -> Losses:
        """Instances that this gateway lost."""
        return self._backend.losses

    @property
    def tally(self) -> SystemTally | None:
        """Counts of the whole system as the board told them last; None = it has not answered yet."""
        return self._news.tally

    @property
    def hosts(self) -> tuple[HostRow, ...]:
        """Hosts of the cluster, as the board told them last."""
        return self._news.hosts

    @property
    def gateways(self) -> int:
        """This gateway and those beside it."""
        return 1 + self._news.others

    def counts(self) -> dict[str, int]:
        """Implements `LiveBackend.counts`, with the requests of all other gateways as the board told them last."""
        counts = self._backend.counts()
        counts["running"] += self._news.others_running
        counts["queued"] += self._news.others_queued
        return counts

    def report(self, now: float) -> GatewayReport:
        """Everything counted so far, and what waits at this moment.

        Args:
            now: gateway time [s].
        """
        queued, tokens, _ = self._backend.waiting()
        return self._meter.report(now, queued, tokens, starved=self._backend.starved)
