"""Rates, durations and strengths of faults, each number with its basis.

Two rates are published, both quoted by ReviveMoE (arXiv 2602.21140v1, introduction): one failure per 7.9 h on 1,024
accelerators, and 2 to 5 % of the nodes each month. The first counts every cause that stops a job; the share of the
accelerator, its memory and the network is taken from the causes of the 419 interruptions of the Llama 3 training
on 16,384 GPUs (arXiv 2407.21783, reliability table; read in press reports): GPU 58.7 % of which memory 17.2 %,
network 8.4 %. No serving system has published rates of stragglers, lost sub-planes, or repair times: these numbers
are assumptions, marked as such, and meant to be overridden.

At these rates a supernode of 384 NPUs has an accelerator or network fault every 31 h. To see faults in an hour of
trace, write a schedule or multiply the rates: `FaultRates().scaled(100)`.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.spec.catalog import Confidence, Figure
from hardware.units import Seconds

PROCESS_KINDS = tuple(FaultKind)[tuple(FaultKind).index(FaultKind.KILL) :]
"""Kinds that hit processes and clients, on any hardware."""
_D, _U = Confidence.DERIVED, Confidence.UNVERIFIED
_HOURS_PER_MONTH = 730
_ACCELERATOR = 1 / (7.9 * 1024)
"""Failures per accelerator (NPU) and hour, of any cause: 1.24e-4."""
_DEVICE_PART, _MEMORY_PART, _NETWORK_PART = 0.587 - 0.172, 0.172, 0.084
_OF_RATE = "of one failure per 7.9 h on 1,024 accelerators (ReviveMoE), causes as in the Llama 3 training"

RATES: dict[FaultKind, Figure] = {
    FaultKind.DIE: Figure(
        _ACCELERATOR * _DEVICE_PART / 4, "1/h", f"41.5 % {_OF_RATE}", _D, "assumed: half of them hit one die of two"
    ),
    FaultKind.NPU: Figure(
        _ACCELERATOR * _DEVICE_PART / 2, "1/h", f"41.5 % {_OF_RATE}", _D, "assumed: half of them hit the package"
    ),
    FaultKind.NODE: Figure(0.035 / _HOURS_PER_MONTH, "1/h", "2-5 % of nodes each month (ReviveMoE), the middle", _D),
    FaultKind.RDMA_LINK: Figure(_ACCELERATOR * _NETWORK_PART / 2, "1/h", f"8.4 % {_OF_RATE}", _D, "two per NPU"),
    FaultKind.UB_SUBPLANE: Figure(1 / (12 * _HOURS_PER_MONTH), "1/h", "assumed: each sub-plane once a year", _U),
    FaultKind.VPC_CARD: Figure(0.0035 / _HOURS_PER_MONTH, "1/h", "assumed: a tenth of the nodes' rate", _U),
    FaultKind.STRAGGLER: Figure(1e-4, "1/h", "assumed: of the order of accelerator failures", _U),
    FaultKind.HBM: Figure(_ACCELERATOR * _MEMORY_PART / 2, "1/h", f"17.2 % {_OF_RATE}", _D, "two dies per NPU"),
    FaultKind.MEMORY_SERVER: Figure(1 / _HOURS_PER_MONTH, "1/h", "assumed: a process crash a month", _U),
    FaultKind.GATEWAY: Figure(1 / _HOURS_PER_MONTH, "1/h", "assumed: a process crash a month", _U),
    FaultKind.NETWORK_GLITCH: Figure(1 / 24, "1/h", "assumed: a switch flap a day and supernode", _U),
    FaultKind.LAUNCH_JITTER: Figure(0.0, "1/h", "xDeepServe 4.4: absent once garbage collection is controlled", _D),
    **dict.fromkeys(PROCESS_KINDS, Figure(0.0, "1/h", "none published beside those above; a file sets it", _U)),
}
"""Per unit (die, NPU, node, link, sub-plane of a supernode, card, process, supernode) and hour."""

_REPAIR = Figure(4 * 3600.0, "s", "assumed: the part is swapped; no repair time is published", _U)
_REBOOT = Figure(300.0, "s", "DeepServe 7: a lost engine is back within 5 minutes", _D, "upper bound")

_DRAWN = Figure(5.0, "s", "assumed: the middle of the durations that a scenario draws by default", _U)
_AT_ONCE = Figure(0.0, "s", "it only happens; what follows is up to the system that is hit")

DURATIONS: dict[FaultKind, Figure] = {
    FaultKind.DIE: _REPAIR,
    FaultKind.NPU: _REPAIR,
    FaultKind.NODE: _REPAIR,
    FaultKind.RDMA_LINK: Figure(60.0, "s", "assumed: a link flap", _U),
    FaultKind.UB_SUBPLANE: Figure(600.0, "s", "assumed: a switch restarts", _U),
    FaultKind.VPC_CARD: Figure(600.0, "s", "assumed: a card restarts", _U),
    FaultKind.STRAGGLER: Figure(600.0, "s", "assumed: until it is drained", _U),
    FaultKind.HBM: Figure(0.0, "s", "xDeepServe 6.2: remapped and masked while the engine stays up", _D),
    FaultKind.MEMORY_SERVER: _REBOOT,
    FaultKind.GATEWAY: _REBOOT,
    FaultKind.NETWORK_GLITCH: Figure(0.0, "s", "xDeepServe 6.2: the cost is the repeated step", _D),
    FaultKind.LAUNCH_JITTER: Figure(0.1, "s", "xDeepServe 4.4: can exceed 100 ms", _D),
    FaultKind.KILL: _AT_ONCE,
    FaultKind.KILL_PART: _AT_ONCE,
    FaultKind.FREEZE: _DRAWN,
    FaultKind.SLOW_LINK: _DRAWN,
    FaultKind.BIT_FLIP: _DRAWN,
    FaultKind.FULL_DISK: _DRAWN,
    FaultKind.CANCEL_BURST: _AT_ONCE,
    FaultKind.FLOOD: _DRAWN,
}
"""Mean duration."""

DRAWN_DURATIONS = frozenset({FaultKind.RDMA_LINK, FaultKind.STRAGGLER, FaultKind.LAUNCH_JITTER})
"""Kinds whose durations are drawn, exponentially around the mean; the others last exactly as long."""

_GONE = Figure(0.0, "1", "the unit is gone")

STRENGTHS: dict[FaultKind, Figure] = {
    FaultKind.DIE: _GONE,
    FaultKind.NPU: _GONE,
    FaultKind.NODE: _GONE,
    FaultKind.RDMA_LINK: _GONE,
    FaultKind.UB_SUBPLANE: _GONE,
    FaultKind.VPC_CARD: _GONE,
    FaultKind.STRAGGLER: Figure(1.5, "1", "assumed; xDeepServe and ReviveMoE leave slow devices out", _U),
    FaultKind.HBM: Figure(0.01, "1", "assumed: a hundredth of the die's KV blocks", _U),
    FaultKind.MEMORY_SERVER: _GONE,
    FaultKind.GATEWAY: _GONE,
    FaultKind.NETWORK_GLITCH: Figure(1.0, "1", "xDeepServe 6.2: back to the previous iteration", _D),
    FaultKind.LAUNCH_JITTER: _GONE,
    FaultKind.KILL: _GONE,
    FaultKind.KILL_PART: _GONE,
    FaultKind.FREEZE: _GONE,
    FaultKind.SLOW_LINK: Figure(0.5, "1", "assumed: seconds that a move takes longer", _U),
    FaultKind.BIT_FLIP: Figure(8.0, "1", "assumed: bits", _U),
    FaultKind.FULL_DISK: _GONE,
    FaultKind.CANCEL_BURST: Figure(8.0, "1", "assumed: requests", _U),
    FaultKind.FLOOD: Figure(8.0, "1", "assumed: streams at once", _U),
}
"""Default of `Fault.factor`."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Faults per unit and hour, a field for each kind; the defaults and their sources are `RATES`.

    Raises: SpecError if one is negative or not finite.
    """

    die: float = RATES[FaultKind.DIE].value
    npu: float = RATES[FaultKind.NPU].value
    node: float = RATES[FaultKind.NODE].value
    rdma_link: float = RATES[FaultKind.RDMA_LINK].value
    ub_subplane: float = RATES[FaultKind.UB_SUBPLANE].value
    vpc_card: float = RATES[FaultKind.VPC_CARD].value
    straggler: float = RATES[FaultKind.STRAGGLER].value
    hbm: float = RATES[FaultKind.HBM].value
    memory_server: float = RATES[FaultKind.MEMORY_SERVER].value
    gateway: float = RATES[FaultKind.GATEWAY].value
    network_glitch: float = RATES[FaultKind.NETWORK_GLITCH].value
    launch_jitter: float = RATES[FaultKind.LAUNCH_JITTER].value
    kill: float = 0.0
    kill_part: float = 0.0
    freeze: float = 0.0
    slow_link: float = 0.0
    bit_flip: float = 0.0
    full_disk: float = 0.0
    cancel_burst: float = 0.0
    flood: float = 0.0

    def __post_init__(self) -> None:
        for kind in FaultKind:
            if not 0 <= self.of(kind) < math.inf:
                raise SpecError(f"rate of {kind} faults is {self.of(kind)}; it must be finite and not negative")

    def of(self, kind: FaultKind) -> float:
        """Faults of this kind per unit and hour."""
        rate: float = getattr(self, kind.value)
        return rate

    def scaled(self, by: float) -> "FaultRates":
        """All rates times a number, to see in an hour what takes weeks.

        Raises: SpecError if the number is negative or not finite.
        """
        if not 0 <= by < math.inf:
            raise SpecError(f"fault rates times {by}; the factor must be finite and not negative")
        return replace(self, **{field.name: getattr(self, field.name) * by for field in fields(self)})


# The parts of a scenario file that name faults directly: `[[fault]]` tables at fixed times, and `[rates]`.
#
# [[fault]]
# at_s = 600
# kind = "npu"
# target = "n3.npu5"
# duration_s = 900        # optional: the kind's usual duration; inf = not repaired
# factor = 0              # optional: the kind's usual strength
#
# [rates]
# published = 100         # optional: all published rates times this
# straggler = 0.01        # a kind's rate, per unit and hour

_KEYS = ("at_s", "kind", "target", "duration_s", "factor")
_NEEDED = ("at_s", "kind")
_PUBLISHED = "published"
NO_FAULTS = FaultRates().scaled(0.0)


def faults_from(entries: object, origin: str, duration: Callable[[str], float] | None = None) -> tuple[Fault, ...]:
    """The parsed `[[fault]]` tables as faults.

    Args:
        origin: source of the tables, for messages.
        duration: reads a text such as "10min" as seconds, and raises ValueError; without it, times are numbers.
    Returns: faults in order of time.
    Raises: SpecError, one line with the origin, the number of the fault and the remedy.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise SpecError(f"{origin}: write each fault as a table of its own: [[fault]]")
    faults = []
    for number, entry in enumerate(entries, start=1):
        try:
            faults.append(_fault(entry, duration))
        except SpecError as error:
            raise SpecError(f"{origin}: fault {number}: {error}") from error
    return tuple(sorted(faults, key=lambda fault: fault.order))


def rates_from(table: object, origin: str) -> FaultRates:
    """The parsed `[rates]` table: 0 for every kind that it does not name.

    Raises: SpecError, one line.
    """
    kinds = [kind.value for kind in FaultKind]
    if not isinstance(table, Mapping):
        raise SpecError(f"{origin}: [rates] must be a section of kinds and numbers")
    try:
        for name in table:
            if name != _PUBLISHED and name not in kinds:
                raise SpecError(f"unknown kind {name!r}{_nearest(str(name), kinds)}; kinds are {', '.join(kinds)}")
        rates = FaultRates().scaled(_number(table, _PUBLISHED, 0.0))
        return replace(rates, **{name: _number(table, name, 0.0) for name in table if name != _PUBLISHED})
    except SpecError as error:
        raise SpecError(f"{origin}: [rates] {error}") from error


def _fault(entry: object, duration: Callable[[str], float] | None) -> Fault:
    if not isinstance(entry, Mapping):
        raise SpecError(f"{entry!r} is no table; keys are {', '.join(_KEYS)}")
    for name in entry:
        if name not in _KEYS:
            raise SpecError(f"unknown key {name!r}{_nearest(str(name), _KEYS)}; keys are {', '.join(_KEYS)}")
    missing = [name for name in _NEEDED if name not in entry]
    if missing:
        raise SpecError(f"{missing[0]} is missing")
    kind = _kind(entry["kind"])
    target = entry.get("target", "")
    if not isinstance(target, str):
        raise SpecError(f"target is {target!r}; it must be a name in quotes")
    return Fault(
        at_s=Seconds(_number(entry, "at_s", 0.0, duration)),
        kind=kind,
        target=target,
        duration_s=Seconds(_number(entry, "duration_s", DURATIONS[kind].value, duration)),
        factor=_number(entry, "factor", STRENGTHS[kind].value),
    )


def _kind(value: object) -> FaultKind:
    names = [kind.value for kind in FaultKind]
    if value not in names:
        raise SpecError(f"unknown kind {value!r}{_nearest(str(value), names)}; kinds are {', '.join(names)}")
    return FaultKind(str(value))


def _number(entry: Mapping[str, Any], name: str, default: float, read: Callable[[str], float] | None = None) -> float:
    value = entry.get(name, default)
    if isinstance(value, str) and read is not None:
        try:
            return read(value)
        except ValueError as error:
            raise SpecError(f"{name}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"{name} is too large") from None


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
