"""A host of the cluster in status pages and metrics."""

from collections.abc import Sequence

from msgspec import Struct


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
