"""Faults as values: their kinds, targets, and the meaning of their numbers.

A fault is a plain value: at `at_s` a fault of `kind` hits `target`, for `duration_s`, with strength `factor`.
Its consequences (lost KV, recovery) are up to the affected system; `recovery` has the durations of published systems.

Targets are names: `n3.npu5.die1`, `n3.npu5`, `n3` as in `topology`; `sn0` is a supernode and `sn0.subplane4` one of
its UB sub-planes; `memory2`, `gateway0` and `decode1` are processes in the order of their pools. A fault without a
target has pools and a draw instead: its target is chosen among the healthy processes at that time.
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from hardware.errors import SpecError
from hardware.units import Seconds


class FaultKind(StrEnum):
    """Kind of fault."""

    DIE = "die"
    """A die is lost with its HBM."""
    NPU = "npu"
    """A package is lost: both dies."""
    NODE = "node"
    """A host is lost with its NPUs, CPUs, links and memory server."""
    RDMA_LINK = "rdma_link"
    """A die's RDMA port, both directions, has reduced or no bandwidth."""
    UB_SUBPLANE = "ub_subplane"
    """One UB sub-plane of a supernode fails: every UB link in it loses that lane."""
    VPC_CARD = "vpc_card"
    """A node's datacentre card has reduced or no bandwidth."""
    STRAGGLER = "straggler"
    """A die computes slowly, and its group waits for it."""
    HBM = "hbm"
    """A bad region of a die's memory is masked; the KV blocks in it are lost, the engine stays up."""
    MEMORY_SERVER = "memory_server"
    """A memory server process is lost with what it held."""
    GATEWAY = "gateway"
    """A gateway process is lost with its connections."""
    NETWORK_GLITCH = "network_glitch"
    """A passing network error: all groups of a supernode roll back and repeat a step."""
    LAUNCH_JITTER = "launch_jitter"
    """A host pauses (garbage collection) and launches the next step late; its group waits."""
    KILL = "kill"
    """The process of an instance or a memory server is killed; another one is started."""
    KILL_PART = "kill_part"
    """A process outside the pools is killed: a gateway, a node, a part of the control plane."""
    FREEZE = "freeze"
    """A process is stopped, and continues later unless it has been replaced."""
    SLOW_LINK = "slow_link"
    """Every move of KV from and to an instance takes longer."""
    BIT_FLIP = "bit_flip"
    """Bits of stored blocks, or of a handoff, are turned over."""
    FULL_DISK = "full_disk"
    """The SSD tier of a memory server accepts no data."""
    CANCEL_BURST = "cancel_burst"
    """Many requests at once whose clients leave."""
    FLOOD = "flood"
    """Another tenant keeps many long streams running."""


class FactorMeaning(StrEnum):
    """Meaning of `factor`, and the values it may have."""

    PART_LEFT = "part of the capacity that is left"
    SLOWDOWN = "how many times longer a step takes"
    PART_LOST = "part of the die's KV blocks that is lost"
    STEPS = "steps that are repeated"
    DELAY = "how much longer each move takes, in seconds"
    COUNT = "how many bits or requests"
    GONE = "nothing: the unit is gone"

    def allows(self, factor: float) -> bool:
        """Whether a fault may have this factor."""
        match self:
            case FactorMeaning.PART_LEFT:
                return 0 <= factor < 1
            case FactorMeaning.SLOWDOWN:
                return 1 <= factor < math.inf
            case FactorMeaning.PART_LOST:
                return 0 < factor <= 1
            case FactorMeaning.STEPS:
                return 1 <= factor < math.inf and factor == int(factor)
            case FactorMeaning.DELAY:
                return 0 <= factor <= 60
            case FactorMeaning.COUNT:
                return 1 <= factor <= 1000 and factor == int(factor)
            case FactorMeaning.GONE:
                return factor == 0

    @property
    def range_text(self) -> str:
        """The allowed values, for a message."""
        return _RANGES[self]


_RANGES = {
    FactorMeaning.PART_LEFT: "from 0 to below 1",
    FactorMeaning.SLOWDOWN: "at least 1",
    FactorMeaning.PART_LOST: "above 0, at most 1",
    FactorMeaning.STEPS: "a whole number, at least 1",
    FactorMeaning.DELAY: "from 0 to 60",
    FactorMeaning.COUNT: "a whole number from 1 to 1000",
    FactorMeaning.GONE: "0",
}


@dataclass(frozen=True, slots=True)
class TargetForm:
    """How the name of a target is written.

    Attributes:
        pattern: the whole name, with the numbers as groups.
        example: for messages.
    """

    pattern: re.Pattern[str]
    example: str


_DIE = TargetForm(re.compile(r"n(\d+)\.npu(\d+)\.die(\d+)"), "n3.npu5.die1")
_NPU = TargetForm(re.compile(r"n(\d+)\.npu(\d+)"), "n3.npu5")
_NODE = TargetForm(re.compile(r"n(\d+)"), "n3")
_SUPERNODE = TargetForm(re.compile(r"sn(\d+)"), "sn0")
_SUBPLANE = TargetForm(re.compile(r"sn(\d+)\.subplane(\d+)"), "sn0.subplane4")
_MEMORY = TargetForm(re.compile(r"memory(\d+)"), "memory2")
_GATEWAY = TargetForm(re.compile(r"gateway(\d+)"), "gateway0")
_ENGINE = TargetForm(re.compile(r"(?:prefill|decode|aggregated)(\d+)"), "decode1")
_PROCESS = TargetForm(re.compile(r"(?:prefill|decode|aggregated|memory)(\d+)"), "decode1")
_PART = TargetForm(re.compile(r"[a-z_]+(\d+)"), "gateway0")
_BYTES = TargetForm(re.compile(r"(?:decode|memory)(\d+)"), "memory2")
_NOTHING = TargetForm(re.compile(""), "an empty text, as it hits no unit")

TARGETS: dict[FaultKind, TargetForm] = {
    FaultKind.DIE: _DIE,
    FaultKind.NPU: _NPU,
    FaultKind.NODE: _NODE,
    FaultKind.RDMA_LINK: _DIE,
    FaultKind.UB_SUBPLANE: _SUBPLANE,
    FaultKind.VPC_CARD: _NODE,
    FaultKind.STRAGGLER: _DIE,
    FaultKind.HBM: _DIE,
    FaultKind.MEMORY_SERVER: _MEMORY,
    FaultKind.GATEWAY: _GATEWAY,
    FaultKind.NETWORK_GLITCH: _SUPERNODE,
    FaultKind.LAUNCH_JITTER: _NODE,
    FaultKind.KILL: _PROCESS,
    FaultKind.KILL_PART: _PART,
    FaultKind.FREEZE: _PROCESS,
    FaultKind.SLOW_LINK: _ENGINE,
    FaultKind.BIT_FLIP: _BYTES,
    FaultKind.FULL_DISK: _MEMORY,
    FaultKind.CANCEL_BURST: _NOTHING,
    FaultKind.FLOOD: _NOTHING,
}

FACTORS: dict[FaultKind, FactorMeaning] = {
    FaultKind.DIE: FactorMeaning.GONE,
    FaultKind.NPU: FactorMeaning.GONE,
    FaultKind.NODE: FactorMeaning.GONE,
    FaultKind.RDMA_LINK: FactorMeaning.PART_LEFT,
    FaultKind.UB_SUBPLANE: FactorMeaning.GONE,
    FaultKind.VPC_CARD: FactorMeaning.PART_LEFT,
    FaultKind.STRAGGLER: FactorMeaning.SLOWDOWN,
    FaultKind.HBM: FactorMeaning.PART_LOST,
    FaultKind.MEMORY_SERVER: FactorMeaning.GONE,
    FaultKind.GATEWAY: FactorMeaning.GONE,
    FaultKind.NETWORK_GLITCH: FactorMeaning.STEPS,
    FaultKind.LAUNCH_JITTER: FactorMeaning.GONE,
    FaultKind.KILL: FactorMeaning.GONE,
    FaultKind.KILL_PART: FactorMeaning.GONE,
    FaultKind.FREEZE: FactorMeaning.GONE,
    FaultKind.SLOW_LINK: FactorMeaning.DELAY,
    FaultKind.BIT_FLIP: FactorMeaning.COUNT,
    FaultKind.FULL_DISK: FactorMeaning.GONE,
    FaultKind.CANCEL_BURST: FactorMeaning.COUNT,
    FaultKind.FLOOD: FactorMeaning.COUNT,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_s: time, from the start of the run.
        kind: kind of fault.
        target: name of the affected unit; its form follows from the kind (`TARGETS`).
        duration_s: how long the unit is lost, slow or paused; infinite without repair; 0 for an instantaneous fault.
        factor: strength; its meaning follows from the kind (`FACTORS`).
        pools: of a fault without a target: the pools in which one is chosen, in this order.
        spare_last: such a fault spares a pool's last healthy process.
        draw: from 0 to below 1; chooses the target in its pool, and all other random properties of the fault.
    Raises: SpecError if the target has another kind's form, or a number is impossible.
    """

    at_s: Seconds
    kind: FaultKind
    target: str
    duration_s: Seconds
    factor: float
    pools: tuple[str, ...] = ()
    draw: float = 0.0
    spare_last: bool = False

    def __post_init__(self) -> None:
        form, meaning = TARGETS[self.kind], FACTORS[self.kind]
        if not (self.pools and not self.target) and form.pattern.fullmatch(self.target) is None:
            raise SpecError(f"{self.kind} fault: target {self.target!r} must be written like {form.example}")
        if not 0 <= self.at_s < math.inf:
            raise SpecError(f"{self.kind} fault: at_s is {self.at_s}; it must be finite and not negative")
        if not self.duration_s >= 0:
            raise SpecError(f"{self.kind} fault: duration_s is {self.duration_s}; it must not be negative")
        if not meaning.allows(self.factor):
            raise SpecError(
                f"{self.kind} fault: factor is {self.factor}; it says {meaning.value} and must be {meaning.range_text}"
            )

    @property
    def until_s(self) -> Seconds:
        """Time at which its effect ends by itself; infinite if it does not."""
        return Seconds(self.at_s + self.duration_s)

    @property
    def order(self) -> tuple[float, str, str]:
        """Sort key: faults of one time are ordered by the names of their kinds, then of their targets."""
        return (self.at_s, self.kind.value, self.target)

    @property
    def process(self) -> tuple[str, int] | None:
        """Pool and number of the process that the target names; None if it names no process."""
        found = re.fullmatch(r"([a-z_]+)(\d+)", self.target)
        if found is None:
            return None
        pool = {"memory": "kvcache", "n": "node"}.get(found[1], found[1])
        return None if pool == "sn" else (pool, int(found[2]))

    @property
    def target_numbers(self) -> tuple[int, ...]:
        """The numbers in the target's name: (3, 5, 1) of n3.npu5.die1."""
        match = TARGETS[self.kind].pattern.fullmatch(self.target)
        assert match is not None
        return tuple(int(number) for number in match.groups())
