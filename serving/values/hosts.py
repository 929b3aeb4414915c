"""A host of the cluster as status pages and metrics show it."""

from collections.abc import Sequence

from msgspec import Struct


class HostRow(Struct, frozen=True):
    """One Ray node, which may stand for several hosts.

    Args:
        name: `n0` for the node whose first host has number 0; else the beginning of Ray's id.
        address: by which other hosts reach it.
        npus, ub_memory_mib: offered, or once offered by a lost one.
        npus_used, ub_used_mib: taken by replicas.
        lost_s: how long Ray has given it up [s]; None = it lives.
        gateways: that serve there.
        disk_full: line about the disk of Ray's session folder there; empty = it is not full, or not known.
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
    """NPUs of all living hosts."""
    return sum(host.npus for host in hosts if host.lost_s is None)
