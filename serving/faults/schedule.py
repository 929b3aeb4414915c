"""Schedule of faults: a pure function of scenario, seed and size of the system, for live systems and virtual time.

A drawn fault contains all its random draws: an order of pools, a number that selects among the live processes, a
duration. So the same seed tries the same faults at the same times, whatever the system's state. `choose` selects the
target at the time of the fault.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hardware.errors import SpecError
from hardware.faults import DURATIONS, STRENGTHS, Fault, FaultKind, FaultUnits, fault_schedule
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import Topology
from hardware.units import Seconds
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.faults.scenario import LASTING, ONLY_IF_NAMED, PARTS, POOLS_OF, RANKS, FaultConfig, Scenario

GRAVE = frozenset(
    {
        FaultKind.KILL,
        FaultKind.KILL_PART,
        FaultKind.FREEZE,
        FaultKind.MEMORY_SERVER,
        FaultKind.GATEWAY,
        FaultKind.NODE,
    }
)
"""Faults that stop a process."""
OF_PARTS = frozenset({FaultKind.KILL_PART, FaultKind.GATEWAY, FaultKind.NODE})
"""Faults of processes outside the pools."""


def units_of(config: ServeConfig) -> FaultUnits:
    """Units and processes of a system with this configuration."""
    instances = {pool: settings.replicas for pool, settings in config.pools.items()}
    return units_with({**instances, "kvcache": config.kvcache.replicas}, config.gateway.replicas)


def units_with(sizes: Mapping[str, int], gateways: int) -> FaultUnits:
    """Units and processes of a system of these sizes; its hosts count as those of a supernode.

    Args:
        sizes: processes of each pool, memory servers under `kvcache`.
    """
    instances = {pool: count for pool, count in sizes.items() if pool != "kvcache"}
    return FaultUnits(Topology(CLOUDMATRIX384), gateways, sizes.get("kvcache", 0), instances)


def plan_faults(scenario: Scenario, seed: int, duration_s: float, units: FaultUnits) -> tuple[Fault, ...]:
    """Schedule of a run: `[[fault]]` tables, and the faults drawn from `[[faults]]` and `[rates]` by seed.

    Args:
        duration_s: period of drawn faults [s]; a `[[fault]]` may be later.
        units: units of the system.
    Returns: faults in order of time; `[[faults]]` draws none in the scenario's first and last, quiet, part.
    Raises: ConfigError if the target of a `[[fault]]` does not exist.
    """
    try:
        for fault in scenario.fault:
            if fault.kind is not FaultKind.KILL_PART:
                units.require(fault)
        rated = fault_schedule(units, scenario.rates, duration_s, seed)
    except SpecError as error:
        raise ConfigError(str(error)) from error
    drawn = _drawn(scenario, seed, duration_s, units)
    return tuple(sorted([*scenario.fault, *drawn, *rated], key=lambda fault: fault.order))


def _drawn(scenario: Scenario, seed: int, duration_s: float, units: FaultUnits) -> list[Fault]:
    """One fault in each period of `every_s`."""
    rng = random.Random(f"chaos-{seed}")  # the same in every process, unlike hash()
    times, tables = scenario.scenario, [one for one in scenario.faults if one.weight]
    drawn: list[Fault] = []
    left: list[FaultConfig] = []
    stretch = 0
    while tables:
        begin = times.first_s + stretch * times.every_s
        at_s = begin + rng.random() * times.spread * times.every_s
        left = left or tables
        table = rng.choices(left, [one.weight for one in left])[0]
        left = [one for one in left if one is not table] if times.in_turn else []
        order = _order_of_pools(scenario, table, units.pools, rng)
        draw, lasts_s = rng.random(), rng.uniform(table.least_s, table.most_s)
        if begin > duration_s - times.quiet_s:
            break
        stretch += 1
        if at_s <= duration_s - times.quiet_s and (order or not POOLS_OF[table.kind]):
            fault = _fault(table, at_s, order, draw, lasts_s, units)
            spared = scenario.pools.keep_one and fault.kind in GRAVE - OF_PARTS
            drawn.append(replace(fault, spare_last=spared))
    return drawn


def _fault(
    table: FaultConfig, at_s: float, order: tuple[str, ...], draw: float, lasts_s: float, units: FaultUnits
) -> Fault:
    kind, factor = FaultKind(table.kind), STRENGTHS[table.kind].value
    if kind is FaultKind.SLOW_LINK:
        factor = table.delay_s
    elif kind in (FaultKind.BIT_FLIP, FaultKind.CANCEL_BURST, FaultKind.FLOOD):
        factor = float(table.count)
    if table.until_replaced:
        lasts_s = math.inf
    elif kind not in LASTING:
        lasts_s = DURATIONS[kind].value
    names = [] if order else units.names(kind)
    target = names[int(draw * len(names))] if names else ""
    return Fault(Seconds(at_s), kind, target, Seconds(lasts_s), factor, order, draw)


def _order_of_pools(
    scenario: Scenario, fault: FaultConfig, pools: Sequence[str], rng: random.Random
) -> tuple[str, ...]:
    """Pools that a fault may hit, in an order drawn by their weights."""
    named = fault.kind == FaultKind.NODE
    allowed = fault.pools or [pool for pool in POOLS_OF[fault.kind] if named or pool not in ONLY_IF_NAMED]
    left = {pool: scenario.pools.weight(pool) for pool in allowed if pool in pools or pool in (*PARTS, *RANKS)}
    left = {pool: weight for pool, weight in left.items() if weight > 0}
    order: list[str] = []
    while left:
        pool = rng.choices(list(left), list(left.values()))[0]
        del left[pool]
        order.append(pool)
    return tuple(order)


def choose(fault: Fault, healthy: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Choose the process that a fault hits.

    Args:
        healthy: names of live processes, neither dead nor frozen, by pool; the first in their order has number 0.
    Returns: pool and name; None if there is no possible target now.
    """
    if (named := fault.process) is not None:
        pool, number = named
        there = sorted(healthy.get(pool, ()))
        return (pool, there[number]) if number < len(there) else None
    least = 2 if fault.spare_last else 1
    for pool in fault.pools:
        names = sorted(healthy.get(pool, ()))
        if len(names) >= least:
            return pool, names[int(fault.draw * len(names))]
    return None
