"""Virtual NPUs and UB memory as Ray resources; the only file of this package that imports ray.

"NPU" is Ray's own accelerator name for Ascend devices, so that the same requests work on a machine that has real ones:
Ray hands out device numbers and shows them on its dashboard. "UB_MEMORY" is in MiB; Ray only counts it, and
the UB segment enforces the limit. Each Ray node numbers its NPUs from 0, so a node also carries a label with its first
host's number.
"""

import logging
from collections.abc import Sequence

import ray

from hardware.errors import NpuAllocationError, SpecError
from hardware.topology import NPUS_PER_HOST, NpuId, npu_ids

NPU = "NPU"
UB_MEMORY = "UB_MEMORY"
NODE_LABEL = "cloudmatrix-node"

_PROBE_LOGGER = "ray._private.accelerators.npu"
_PROBE_MESSAGE = "Failed to detect NPU type."


def node_resources(npus: int, ub_memory_mib: int) -> dict[str, float]:
    """Ray resources that one node of the cluster offers.

    Start the node with `num_gpus=0` where the host has GPUs: Ray lets a node have one kind of accelerator.

    Args:
        npus: virtual NPUs of the node; 0 for a node without.
        ub_memory_mib: MiB of its UB segment; Ray takes whole numbers only. 0 leaves it out.
    Returns: the `resources` of `ray.init` or of a cluster node.
    Raises: SpecError if a number is negative.
    """
    return _resources(npus, ub_memory_mib, "a node")


def replica_resources(npus: int, ub_mib: int) -> dict[str, float]:
    """Ray resources that one replica takes: whole NPUs, and its share of the node's UB memory.

    Args:
        npus: NPUs of the instance; 0 for a replica without.
        ub_mib: MiB of UB memory; 0 leaves it out.
    Returns: the `resources` of a replica's actor options.
    Raises: SpecError if a number is negative.
    """
    return _resources(npus, ub_mib, "a replica")


def node_labels(node: int) -> dict[str, str]:
    """The label by which a Ray node wishes for a number of its first host.

    Returns: the `labels` of `ray.init` or of a cluster node.
    Raises: SpecError if the number is negative.
    """
    if node < 0:
        raise SpecError(f"node {node} cannot be; nodes are numbered from 0")
    return {NODE_LABEL: str(node)}


def allocated_npus() -> list[int]:
    """Device numbers that Ray assigned to this process, sorted (Ray does not sort them).

    Returns: numbers within the node, from 0.
    Raises: NpuAllocationError if Ray assigned none.
    """
    given = ray.get_runtime_context().get_accelerator_ids().get(NPU, [])
    if not given:
        raise NpuAllocationError('Ray assigned no NPUs to this process; start the actor with resources={"NPU": k}')
    return sorted(int(device) for device in given)


def allocated_npu_ids(first_host: int) -> list[NpuId]:
    """The NPUs that Ray assigned to this process, as identities of the topology.

    Args:
        first_host: number of the first host of this process's Ray node.
    Returns: identities in order.
    Raises: NpuAllocationError if Ray assigned none.
    """
    return npu_ids(allocated_npus(), first_host)


def first_hosts(npus: Sequence[int]) -> list[int]:
    """The first host of each of several Ray nodes, so that no two share one.

    Args:
        npus: of the Ray nodes, in order.
    """
    hosts = [max(1, -(-count // NPUS_PER_HOST)) for count in npus]
    return [sum(hosts[:index]) for index in range(len(hosts))]


def silence_npu_probe() -> None:
    """Keeps one harmless traceback out of the terminal; call it before Ray starts in this process.

    A node that offers "NPU" without Huawei's driver makes Ray look for the device's type and log the failed import as
    an error. Only that one message is dropped; with the driver it never appears.

    Effects: a filter on one logger of Ray; a second call adds none.
    """
    logging.getLogger(_PROBE_LOGGER).addFilter(_drop_probe)


def _drop_probe(record: logging.LogRecord) -> bool:
    return record.getMessage() != _PROBE_MESSAGE


def _resources(npus: int, ub_mib: int, who: str) -> dict[str, float]:
    if npus < 0 or ub_mib < 0:
        raise SpecError(f"{who} cannot have {npus} NPUs and {ub_mib} MiB of UB memory; neither may be negative")
    amounts = {NPU: float(npus), UB_MEMORY: float(ub_mib)}
    return {name: amount for name, amount in amounts.items() if amount}
