"""Measurements from looks at the cluster and reports of gateways: traffic, capacities, events, samples."""

from serving.config.serve import ServeConfig
from serving.scaling.core.busy import BusyShares
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.event_log import EventLog
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.gateways import Gateways
from serving.scaling.core.history import History
from serving.scaling.core.kept_rows import KeyedValues
from serving.scaling.core.measure import Abilities
from serving.scaling.core.policy_time import PolicyTime
from serving.scaling.core.signals import CacheTotals, scaling_signals
from serving.scaling.core.tally_keeper import TallyKeeper
from serving.values.signals import ScalingSignals
from serving.values.traffic import GatewayReport


class Observations:
    """Everything that is learned from looks and reports. Time is passed in [s since 1970].

    Args:
        now: at the start.
        kept: where events are kept; None = nowhere.
    Attributes:
        policy_looked: when a scaler asked for signals last; 0 = never.
    """

    def __init__(self, config: ServeConfig, now: float, kept: KeyedValues | None = None) -> None:
        self.gateways = Gateways()
        self.cache = CacheTotals()
        self.events = EventLog(round(now), kept)
        self.busy = BusyShares()
        self.history = History()
        self.tally = TallyKeeper()
        self.policy_looked = 0.0
        self._config = config
        self._time = PolicyTime(config.time_scale)
        self._abilities = Abilities()
        self._starved: set[str] = set()

    def look(self, before: ClusterSnapshot, sight: ClusterSnapshot, now: float) -> None:
        """Learn from a look and the one before it."""
        self.events.observe(before, sight)
        self._abilities.observe(sight)
        self.cache.observe(sight)
        self.busy.observe(sight)
        for start in self.tally.observe(before, sight):
            self.events.started(start.pool, start.replica, start.text, sight.at)
        self.gateways.mark(now)
        if self.history.due(sight.at):
            last_minute = self.gateways.last_minute(self._config.slo, now)
            self.history.add(sight, self.gateways.traffic(now), self.cache.hit_tokens, last_minute)

    def report(self, report: GatewayReport, now: float) -> bool:
        """Learn from a gateway's report.

        Returns: whether its requests begin to wait for a pool without instances, which a scaler should know at once.
        """
        self.gateways.report(report, now)
        for notice in report.notices:
            self.events.hear(notice, now)
        begins = report.starved and report.gateway not in self._starved
        self._starved = self._starved & self.gateways.names - {report.gateway}
        self._starved |= {report.gateway} if report.starved else set()
        return begins

    def signals(self, fleet: ScalingFleet, now: float) -> ScalingSignals:
        """Signals for a scaler. Effects: it counts as alive from now on."""
        self.policy_looked = now
        held, traffic, cache = fleet.holds.until(now), self.gateways.traffic(now), self.cache.use(fleet.sight)
        told = scaling_signals(self._config, fleet.sight, traffic, self._abilities, cache, fleet.room, held, self._time)
        return told if fleet.parts is None else fleet.parts.signals(told, fleet.sight)
