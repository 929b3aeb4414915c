"""Targets of each kind of fault in a topology."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.topology import Topology


@dataclass(frozen=True, slots=True)
class FaultUnits:
    """Hardware of a topology, and the processes on it that can be lost separately.

    Attributes:
        gateways, memory_servers: number of processes; 0 if there are none.
        instances: number per pool: prefill, decode, aggregated.
    Raises: SpecError if a count is negative.
    """

    topology: Topology
    gateways: int = 1
    memory_servers: int = 0
    instances: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.gateways < 0 or self.memory_servers < 0:
            raise SpecError(f"{self.gateways} gateways and {self.memory_servers} memory servers cannot be")

    def names(self, kind: FaultKind) -> list[str]:
        """Targets that a fault of this kind can hit, in order."""
        topology = self.topology
        match kind:
            case FaultKind.DIE | FaultKind.RDMA_LINK | FaultKind.STRAGGLER | FaultKind.HBM:
                return [str(die) for die in topology.die_ids()]
            case FaultKind.NPU:
                return [str(npu) for npu in topology.npu_ids()]
            case FaultKind.NODE | FaultKind.VPC_CARD | FaultKind.LAUNCH_JITTER:
                return [str(node) for node in topology.node_ids()]
            case FaultKind.UB_SUBPLANE:
                planes = range(topology.spec.node.l1_switches)
                return [f"sn{index}.subplane{plane}" for index in range(topology.supernodes) for plane in planes]
            case FaultKind.NETWORK_GLITCH:
                return [f"sn{index}" for index in range(topology.supernodes)]
            case FaultKind.MEMORY_SERVER:
                return [f"memory{index}" for index in range(self.memory_servers)]
            case FaultKind.GATEWAY:
                return [f"gateway{index}" for index in range(self.gateways)]
            case FaultKind.KILL | FaultKind.FREEZE:
                return [*self._engines(), *self.names(FaultKind.MEMORY_SERVER)]
            case FaultKind.SLOW_LINK:
                return self._engines()
            case FaultKind.BIT_FLIP:
                decodes = [name for name in self._engines() if name.startswith("decode")]
                return [*decodes, *self.names(FaultKind.MEMORY_SERVER)]
            case FaultKind.FULL_DISK:
                return self.names(FaultKind.MEMORY_SERVER)
            case FaultKind.KILL_PART:
                return self.names(FaultKind.GATEWAY)
            case FaultKind.CANCEL_BURST | FaultKind.FLOOD:
                return [""]

    def _engines(self) -> list[str]:
        return [f"{pool}{index}" for pool, count in self.instances.items() for index in range(count)]

    @property
    def pools(self) -> tuple[str, ...]:
        """Pools that have processes."""
        servers = ("kvcache",) if self.memory_servers else ()
        return (*(pool for pool, count in self.instances.items() if count), *servers)

    def require(self, fault: Fault) -> None:
        """Refuse a fault of a unit that does not exist.

        Raises: SpecError naming the first and the last existing target.
        """
        names = self.names(fault.kind)
        if fault.target not in names:
            there = f"there are {names[0]} to {names[-1]}" if names else "there are none"
            raise SpecError(f"{fault.kind} fault at {fault.at_s:g} s: {fault.target} does not exist; {there}")
