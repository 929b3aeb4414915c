"""Read-only answers of the scaling board, for pages, the command line, scripts and gateways."""

from typing import Any

from serving.config.serve import ServeConfig
from serving.scaling.core.capacity import Abilities
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.event_log import EventLog
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.gateways import Gateways
from serving.scaling.core.group_orders import experts_of
from serving.scaling.core.history import BusyShares, History
from serving.scaling.core.ledger import KeyedValues
from serving.scaling.core.page_state import SHOWN, hardware, host_rows, pool_rows
from serving.scaling.core.signals import CacheTotals, PolicyTime, autoscaler_row, scaling_signals
from serving.scaling.core.start_keeper import TallyKeeper
from serving.values.scaling_operations import ReadDecisions, ReadEvents, ReadExperts, ReadHistory, ReadPools
from serving.values.signals import ScalingSignals
from serving.values.traffic import BoardReply, GatewayReport

# Measurements from snapshots of the cluster and reports of gateways: traffic, capacities, events, samples.


IDLE_AFTER_S = 5.0
"""Time without requests, losses and questions after which the cluster is polled less often."""
IDLE_PERIOD_S = 3.0


class Observations:
    """Measurements from snapshots of the cluster and reports of gateways. All times are passed in [s since 1970].

    Args:
        now: time of the start.
        kept: store for events, so that they outlive the process; None = they do not.
    Attributes:
        policy_polled: when a scaler last requested signals; 0 = never.
        stirred_at: when a gateway last had requests or losses, or a question was asked.
    """

    def __init__(self, config: ServeConfig, now: float, kept: KeyedValues | None = None) -> None:
        self.gateways = Gateways()
        self.cache = CacheTotals()
        self.events = EventLog(round(now), kept)
        self.busy = BusyShares()
        self.history = History()
        self.tally = TallyKeeper()
        self.policy_polled = 0.0
        self.stirred_at = now
        self._config = config
        self._time = PolicyTime(config.time_scale)
        self._abilities = Abilities()
        self._starved: set[str] = set()

    def poll(self, before: ClusterSnapshot, snapshot: ClusterSnapshot, now: float) -> None:
        """Update all measurements from a snapshot and the previous one."""
        self.events.observe(before, snapshot)
        self._abilities.observe(snapshot)
        self.cache.observe(snapshot)
        self.busy.observe(snapshot)
        for start in self.tally.observe(before, snapshot):
            self.events.started(start.pool, start.replica, start.text, snapshot.at)
        self.gateways.mark(now)
        if self.history.due(snapshot.at):
            last_minute = self.gateways.last_minute(self._config.slo, now)
            self.history.add(snapshot, self.gateways.traffic(now), self.cache.hit_tokens, last_minute)

    def report(self, report: GatewayReport, now: float) -> bool:
        """Add a gateway's report.

        Returns: whether its requests have started to wait for a pool without instances, so that a scaler must run now.
        """
        self.gateways.report(report, now)
        if report.running or report.notices:
            self.stirred_at = now
        for notice in report.notices:
            self.events.add_notice(notice, now)
        begins = report.starved and report.gateway not in self._starved
        self._starved = self._starved & self.gateways.names - {report.gateway}
        self._starved |= {report.gateway} if report.starved else set()
        return begins

    def poll_period_s(self, fleet: ScalingFleet, now: float) -> float:
        """Longest time between two polls of the cluster [s]."""
        idle = now - self.stirred_at > IDLE_AFTER_S and not fleet.moving
        return IDLE_PERIOD_S if idle else fleet.poll_period_s

    def signals(self, fleet: ScalingFleet, now: float) -> ScalingSignals:
        """Signals for a scaler; the request also marks the scaler as alive."""
        self.policy_polled = now
        held, traffic, cache = fleet.holds.until(now), self.gateways.traffic(now), self.cache.use(fleet.snapshot)
        result = scaling_signals(
            self._config, fleet.snapshot, traffic, self._abilities, cache, fleet.room, held, self._time
        )
        return result if fleet.parts is None else fleet.parts.signals(result, fleet.snapshot)


# Read-only answers of the scaling board, for pages, the command line, scripts and gateways.

QUESTIONS = (ReadPools, ReadExperts, ReadDecisions, ReadEvents, ReadHistory)
Question = ReadPools | ReadExperts | ReadDecisions | ReadEvents | ReadHistory


class BoardViews:
    """Views of a fleet and its measurements. Time is passed in [s since 1970]."""

    def __init__(self, config: ServeConfig, fleet: ScalingFleet, seen: Observations) -> None:
        self._config = config
        self._fleet = fleet
        self._seen = seen

    def read(self, question: Question, now: float) -> dict[str, Any] | list[dict[str, Any]]:
        """Response to a question from the last snapshot, ready for JSON."""
        self._seen.stirred_at = now
        match question:
            case ReadPools():
                return self._pools(now)
            case ReadExperts():
                return experts_of(self._config, self._fleet.snapshot, self._seen.events.lost(), now)
            case ReadDecisions(pool, after, limit):
                return [self._fleet.room.row(entry, now) for entry in self._fleet.ledger.newest(pool, after, limit)]
            case ReadEvents(pool, after, limit):
                return [event.row() for event in self._seen.events.newest(pool, after, limit)]
            case ReadHistory(after):
                return self._seen.history.newer(after)

    def news(self, gateway: str, now: float) -> BoardReply:
        """News for a gateway's status page: targets, peers, hosts, counts of the whole system."""
        snapshot, holds = self._fleet.snapshot, self._fleet.holds
        targets = {pool: seen.target for pool, seen in snapshot.deployments.items()}
        wakes = self._autoscaler_row(now)["alive"]
        asleep = tuple(pool for pool, target in targets.items() if wakes and not target and not holds.hold(pool, now))
        tally = self._seen.tally.tally(snapshot, self._fleet.ledger.counts) if snapshot.at else None
        hosts = host_rows(self._config, snapshot, now)
        return self._seen.gateways.news(gateway, targets, now, asleep, tally, hosts)

    def _pools(self, now: float) -> dict[str, Any]:
        config, fleet, seen = self._config, self._fleet, self._seen
        traffic, snapshot, cache = seen.gateways.traffic(now), fleet.snapshot, seen.cache
        room = {pool: fleet.room.most(pool, snapshot) for pool in snapshot.deployments}
        waits = {pool: fleet.room.waited_s(pool, now) for pool in room}
        full = [pool for pool, one in snapshot.deployments.items() if room[pool] <= one.target]
        shortages = {pool: fleet.shortage(pool) for pool in full}
        hits = cache.hit_tokens / cache.looked_up_tokens if cache.looked_up_tokens else None
        holds, lost = fleet.holds.rows(now), seen.events.lost()
        return {
            "now": now,
            "seen_s": now - snapshot.at,
            "model": config.model.name or config.model.path.name,
            "mode": config.serving.mode,
            "slo": seen.gateways.last_minute(config.slo, now),
            **hardware(config, snapshot, now),
            "gateway": {
                "host": config.gateway.host,
                "port": config.gateway.port,
                "running": seen.gateways.running(now),
                "queued": traffic.queued,
                "queued_tokens": traffic.queued_tokens,
            },
            "autoscaler": self._autoscaler_row(now),
            "pools": pool_rows(config, snapshot, room, shortages, holds, hits, lost, seen.busy, waits),
            "starts": seen.tally.starts.medians(),
            "decisions": self.read(ReadDecisions(limit=SHOWN), now),
            "events": self.read(ReadEvents(limit=SHOWN), now),
        }

    def _autoscaler_row(self, now: float) -> dict[str, Any]:
        return autoscaler_row(self._config, self._seen.policy_polled, now)
