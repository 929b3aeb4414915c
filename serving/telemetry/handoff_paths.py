"""Handoffs by the node that they were pulled from: durations, bytes and failures, as the puller measured them.

Both ends of a duration are readings of the puller's own clock, so that hosts' clocks need not agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serving.telemetry.pool_stats import OperationLatencies

BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""From a few blocks through shared memory to a pull that outlasts its ticket."""
MOST_SOURCES = 32
"""Source nodes with a row each; further ones share one, `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class HandoffPath:
    """Handoff pulls of one instance from one node since the instance started.

    Args:
        source, target: the nodes; the puller is on `target`.
        moved_bytes: of successful pulls only, like `latencies`.
    """

    source: str
    target: str
    moved_bytes: int
    failures: int
    latencies: OperationLatencies


def handoff_paths(facts: Mapping[str, Sequence[float]], target: str) -> tuple[HandoffPath, ...]:
    """Counts that an instance on `target` announced, as values."""
    return tuple(
        HandoffPath(
            source,
            target,
            int(row[0]),
            int(row[1]),
            OperationLatencies(BOUNDS_S, tuple(int(count) for count in row[3:]), float(row[2])),
        )
        for source, row in facts.items()
    )


def between_hosts(paths: Iterable[HandoffPath], hosts: Mapping[str, str]) -> tuple[HandoffPath, ...]:
    """The same with the nodes' display names; a node without one keeps its id."""
    return tuple(
        replace(path, source=hosts.get(path.source, path.source), target=hosts.get(path.target, path.target))
        for path in paths
    )
