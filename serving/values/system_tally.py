"""Counts of the whole system since its scaling board started, exported by gateways: decisions, starts, nodes."""

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

START_BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""From a process on a warm host to a node that must be provisioned first."""
TOTAL = "total"
"""The phase for the whole start, from Serve's request to serving."""
NODE, PLACING, PROCESS, IMPORTS, WEIGHTS, FIRST_STEP = "node", "placing", "process", "imports", "weights", "first_step"
"""Phases of a start, in order; the last one is not part of it, but of the first request."""
PHASES = (NODE, PLACING, PROCESS, IMPORTS, WEIGHTS)


class StartTimes(Struct, frozen=True, array_like=True):
    """Durations of one phase of the starts of a pool's replicas, by bucket of `START_BOUNDS_S`, and their sum [s]."""

    counts: tuple[int, ...] = (0,) * (len(START_BOUNDS_S) + 1)
    sum_s: float = 0.0

    def with_one(self, seconds: float) -> "StartTimes":
        """These counts with one more start."""
        index = bisect_left(START_BOUNDS_S, seconds)
        counts = (*self.counts[:index], self.counts[index] + 1, *self.counts[index + 1 :])
        return StartTimes(counts, self.sum_s + seconds)


class SystemTally(Struct, frozen=True):
    """Counts that belong to no single gateway or instance.

    Args:
        decisions: changes of targets and holds by pool and kind, as in the ledger.
        starts: replica starts by pool and phase.
        nodes, npus: alive, and offered by them; nodes_lost, nodes_joined: since the board started.
        replicas: by pool and by `serving`, `starting` or `draining`, as Serve lists them.
    """

    decisions: dict[str, dict[str, int]] = {}
    starts: dict[str, dict[str, StartTimes]] = {}
    nodes: int = 0
    npus: int = 0
    nodes_lost: int = 0
    nodes_joined: int = 0
    replicas: dict[str, dict[str, int]] = {}


# A host of the cluster in status pages and metrics.


class HostRow(Struct, frozen=True):
    """One Ray node, which may represent several hosts.

    Args:
        name: `n0` for the node whose first host has number 0; otherwise the beginning of Ray's id.
        address: at which other hosts reach it.
        npus, ub_memory_mib: offered, or once offered by a lost one.
        npus_used, ub_used_mib: used by replicas.
        lost_s: time since Ray declared it dead [s]; None = alive.
        gateways: number of gateways on it.
        disk_full: warning about the disk of its Ray session folder; empty = not full, or unknown.
    """

    name: str
    address: str = ""
    npus: int = 0
    npus_used: int = 0
    ub_memory_mib: int = 0
    ub_used_mib: int = 0
    lost_s: float | None = None
    gateways: int = 0
    disk_full: str = ""


def npus_offered(hosts: Sequence[HostRow]) -> int:
    """NPUs of all hosts that are alive."""
    return sum(host.npus for host in hosts if host.lost_s is None)


# Progress of a deployment, from its deployer to the scaling board.


class DeploymentNotice(Struct, frozen=True):
    """One stage of a deployment, or its end.

    Args:
        author: user, host and process of the deployer.
        configuration: digest of configuration and code.
        stage: the present change, or the result.
        targets: replicas that the configuration newly requests, by deployment; all others keep theirs.
        over: whether the deployment has ended.
    """

    author: str
    configuration: str
    stage: str
    targets: dict[str, int] = {}
    over: bool = False
