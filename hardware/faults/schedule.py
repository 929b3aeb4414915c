"""A seeded schedule of faults.

Each kind of fault is a Poisson process with a random stream of its own, so that changing one kind's rate leaves the
other kinds' faults unchanged. Waiting times are drawn for rate 1 and divided by the rate: twice the rate yields the
same faults in half the time (less those that would hit a unit that is already down), and a longer run extends the
faults of the shorter one.
"""

import math
from random import Random

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.faults.rates import DRAWN_DURATIONS, DURATIONS, STRENGTHS, FaultRates
from hardware.faults.units import FaultUnits
from hardware.units import Seconds

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
