"""Keeps the counts that gateways show of the whole system: nodes that came and went, replica starts by pool."""

from collections.abc import Mapping

from serving.scaling.live.sight import ReplicaPhase, Sight
from serving.values.system_tally import TOTAL, StartTimes, SystemTally


class TallyKeeper:
    """Compares looks at the cluster. Time is passed in, as part of each look."""

    def __init__(self) -> None:
        self._began: dict[tuple[str, str], float] = {}
        """When each replica that does not serve yet was asked for [s since 1970], by pool and name."""
        self._starts: dict[str, dict[str, StartTimes]] = {}
        self._joined = self._lost = 0

    def observe(self, before: Sight, sight: Sight) -> None:
        """Compare two looks; the first one has nothing before it."""
        if before.at:
            old, new = ({node.node for node in one.nodes} for one in (before, sight))
            self._joined += len(new - old)
            self._lost += len(old - new)
        began: dict[tuple[str, str], float] = {}
        for pool, seen in sight.deployments.items():
            for replica in seen.replicas:
                key = pool, replica.name
                if replica.phase is ReplicaPhase.STARTING:
                    began[key] = self._began.get(key) or replica.started_at or sight.at
                elif replica.phase is ReplicaPhase.SERVING and key in self._began:
                    self.started(pool, TOTAL, max(0.0, sight.at - self._began[key]))
        self._began = began

    def started(self, pool: str, phase: str, seconds: float) -> None:
        """Count one phase of a replica's start."""
        phases = self._starts.setdefault(pool, {})
        phases[phase] = phases.get(phase, StartTimes()).with_one(seconds)

    def tally(self, sight: Sight, decisions: Mapping[str, Mapping[str, int]]) -> SystemTally:
        """Everything counted so far, with what the newest look shows. Effects: none."""
        return SystemTally(
            decisions={pool: dict(by_kind) for pool, by_kind in decisions.items()},
            starts={pool: dict(phases) for pool, phases in self._starts.items()},
            nodes=len(sight.nodes),
            npus=sum(node.npus for node in sight.nodes),
            nodes_lost=self._lost,
            nodes_joined=self._joined,
            replicas={
                pool: {phase.value: seen.count(phase) for phase in ReplicaPhase}
                for pool, seen in sight.deployments.items()
            },
        )
