"""Read-only answers of the scaling board, for pages, the command line, scripts and gateways."""

from typing import Any

from serving.config.serve import ServeConfig
from serving.scaling.core.experts_state import experts_of
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.observations import Observations
from serving.scaling.core.page_state import SHOWN, hardware, host_rows, pool_rows
from serving.scaling.core.policy_time import autoscaler_row
from serving.values.scaling import ReadDecisions, ReadEvents, ReadExperts, ReadHistory, ReadPools
from serving.values.traffic import BoardNews

QUESTIONS = (ReadPools, ReadExperts, ReadDecisions, ReadEvents, ReadHistory)
Question = ReadPools | ReadExperts | ReadDecisions | ReadEvents | ReadHistory


class BoardViews:
    """Reads of a fleet and what was observed. Time is passed in [s since 1970]."""

    def __init__(self, config: ServeConfig, fleet: ScalingFleet, seen: Observations) -> None:
        self._config = config
        self._fleet = fleet
        self._seen = seen

    def read(self, question: Question, now: float) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer, from the last look; ready for JSON."""
        match question:
            case ReadPools():
                return self._pools(now)
            case ReadExperts():
                return experts_of(self._config, self._fleet.sight, self._seen.events.lost(), now)
            case ReadDecisions(pool, after, limit):
                return [self._fleet.room.row(entry, now) for entry in self._fleet.ledger.newest(pool, after, limit)]
            case ReadEvents(pool, after, limit):
                return [event.row() for event in self._seen.events.newest(pool, after, limit)]
            case ReadHistory(after):
                return self._seen.history.newer(after)

    def news(self, gateway: str, now: float) -> BoardNews:
        """News for a gateway's status page: targets, peers, hosts, counts of the whole system."""
        sight, holds = self._fleet.sight, self._fleet.holds
        targets = {pool: seen.target for pool, seen in sight.deployments.items()}
        wakes = self._autoscaler_row(now)["alive"]
        asleep = tuple(pool for pool, target in targets.items() if wakes and not target and not holds.hold(pool, now))
        tally = self._seen.tally.tally(sight, self._fleet.ledger.counts) if sight.at else None
        hosts = host_rows(self._config, sight, now)
        return self._seen.gateways.news(gateway, targets, now, asleep, tally, hosts)

    def _pools(self, now: float) -> dict[str, Any]:
        config, fleet, seen = self._config, self._fleet, self._seen
        traffic, sight, cache = seen.gateways.traffic(now), fleet.sight, seen.cache
        room = {pool: fleet.room.most(pool, sight) for pool in sight.deployments}
        waits = {pool: fleet.room.waited_s(pool, now) for pool in room}
        full = [pool for pool, one in sight.deployments.items() if room[pool] <= one.target]
        shortages = {pool: fleet.shortage(pool) for pool in full}
        hits = cache.hit_tokens / cache.looked_up_tokens if cache.looked_up_tokens else None
        holds, lost = fleet.holds.rows(now), seen.events.lost()
        return {
            "now": now,
            "seen_s": now - sight.at,
            "model": config.model.name or config.model.path.name,
            "mode": config.serving.mode,
            "slo": seen.gateways.last_minute(config.slo, now),
            **hardware(config, sight, now),
            "gateway": {
                "running": seen.gateways.running(now),
                "queued": traffic.queued,
                "queued_tokens": traffic.queued_tokens,
            },
            "autoscaler": self._autoscaler_row(now),
            "pools": pool_rows(config, sight, room, shortages, holds, hits, lost, seen.busy, waits),
            "starts": seen.tally.starts.medians(),
            "decisions": self.read(ReadDecisions(limit=SHOWN), now),
            "events": self.read(ReadEvents(limit=SHOWN), now),
        }

    def _autoscaler_row(self, now: float) -> dict[str, Any]:
        return autoscaler_row(self._config, self._seen.policy_looked, now)
