"""A seeded schedule of faults.

Each kind of fault is a Poisson process with a random stream of its own, so that changing one kind's rate leaves the
other kinds' faults unchanged. Waiting times are drawn for rate 1 and divided by the rate: twice the rate yields the
same faults in half the time (less those that would hit a unit that is already down), and a longer run extends the
faults of the shorter one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.faults.rates import DRAWN_DURATIONS, DURATIONS, STRENGTHS, FaultRates
from hardware.topology import Topology
from hardware.units import Seconds

# Targets of each kind of fault in a topology.


@dataclass(frozen=True, slots=True)
class FaultUnits:
    """Hardware of a topology, and the processes on it that can be lost separately.

    Attributes:
        gateways, memory_servers: number of processes; 0 if there are none.
        instances: number per pool.
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


# A seeded schedule of faults.

_SECONDS_PER_HOUR = 3600


def fault_schedule(units: FaultUnits, rates: FaultRates, duration_s: float, seed: int) -> tuple[Fault, ...]:
    """Draw the faults of a run.

    A unit that is still down from a fault of the same kind is not hit again. The affected system decides whether a die
    belongs to a node that is down.

    Args:
        units: units that can fail.
        rates: per unit and hour; 0 omits a kind.
        duration_s: length of the run.
        seed: of all streams; each kind's is `{seed}/faults/{kind}`.
    Returns: faults in order of time (`Fault.order`).
    Raises: SpecError if the duration is negative or not finite.
    """
    if not 0 <= duration_s < math.inf:
        raise SpecError(f"a fault schedule of {duration_s} s; the duration must be finite and not negative")
    faults: list[Fault] = []
    for kind in FaultKind:
        names = units.names(kind)
        per_s = rates.of(kind) * len(names) / _SECONDS_PER_HOUR
        if per_s > 0:
            faults += _draw(kind, names, per_s, duration_s, Random(f"{seed}/faults/{kind}"))
    return tuple(sorted(faults, key=lambda fault: fault.order))


def _draw(kind: FaultKind, names: list[str], per_s: float, duration_s: float, rng: Random) -> list[Fault]:
    faults: list[Fault] = []
    back_s: dict[str, float] = {}
    mean, factor = DURATIONS[kind].value, STRENGTHS[kind].value
    waited = rng.expovariate(1.0)
    while (at_s := waited / per_s) < duration_s:
        target = names[int(rng.random() * len(names))]
        lasts = mean * rng.expovariate(1.0) if kind in DRAWN_DURATIONS else mean
        if at_s >= back_s.get(target, 0.0):
            faults.append(Fault(Seconds(at_s), kind, target, Seconds(lasts), factor))
            back_s[target] = at_s + lasts
        waited += rng.expovariate(1.0)
    return faults
