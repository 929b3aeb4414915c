"""Keeps the counts that gateways show of the whole system: nodes that came and went, replica starts by pool."""

from collections.abc import Mapping

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase
from serving.scaling.core.start_keeper import SeenStart, StartKeeper
from serving.values.system_tally import TOTAL, StartTimes, SystemTally


class TallyKeeper:
    """Compares looks at the cluster. Time is passed in, as part of each look."""

    def __init__(self) -> None:
        self.starts = StartKeeper()
        self._times: dict[str, dict[str, StartTimes]] = {}
        self._joined = self._lost = 0

    def observe(self, before: ClusterSnapshot, sight: ClusterSnapshot) -> list[SeenStart]:
        """Compare two looks; the first one has nothing before it. Returns: starts that have ended."""
        if before.at:
            old, new = ({node.node for node in one.nodes} for one in (before, sight))
            self._joined += len(new - old)
            self._lost += len(old - new - sight.left_nodes)
        found = self.starts.observe(sight)
        for start in found:
            phases = self._times.setdefault(start.pool, {})
            for phase, seconds in start.seconds.items():
                phases[phase] = phases.get(phase, StartTimes()).with_one(seconds)
        return [start for start in found if TOTAL in start.seconds]

    def tally(self, sight: ClusterSnapshot, decisions: Mapping[str, Mapping[str, int]]) -> SystemTally:
        """Everything counted so far, with what the newest look shows."""
        return SystemTally(
            decisions={pool: dict(by_kind) for pool, by_kind in decisions.items()},
            starts={pool: dict(phases) for pool, phases in self._times.items()},
            nodes=len(sight.nodes),
            npus=sum(node.npus for node in sight.nodes),
            nodes_lost=self._lost,
            nodes_joined=self._joined,
            replicas={
                pool: {phase.value: seen.count(phase) for phase in ReplicaPhase}
                for pool, seen in sight.deployments.items()
            },
        )
