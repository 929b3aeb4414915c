"""When what happens: a pure function of scenario and seed. Who exactly, is settled when the time has come.

A planned fault carries all its draws with it: an order of pools, a number that picks among those who are alive, a
duration. So the same seed tries the same things at the same moments, whatever the system has become until then.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.tools.chaos.scenario import ONLY_IF_NAMED, PARTS, POOLS_OF, FaultConfig, FaultKind, Scenario

GRAVE: frozenset[FaultKind] = frozenset({"kill", "kill_part", "freeze"})
"""Faults that take a process away."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of the schedule.

    Args:
        number: in the schedule, from 1.
        at_s: since the load began [s].
        pools: in the order in which they are tried; empty for faults that hit no replica.
        draw: from 0 to below 1; picks the replica.
        lasts_s: drawn duration [s].
        fault: its table of the scenario.
    """

    number: int
    at_s: float
    kind: FaultKind
    pools: tuple[str, ...]
    draw: float
    lasts_s: float
    fault: FaultConfig


def plan_faults(scenario: Scenario, seed: int, duration_s: float, pools: Sequence[str]) -> tuple[PlannedFault, ...]:
    """The schedule of a run.

    Args:
        duration_s: of the load [s].
        pools: that the system has, `kvcache` too.
    Returns: faults in order of time; none in the scenario's first and last, quiet, part.
    Effects: none.
    """
    rng = random.Random(f"chaos-{seed}")  # its value does not depend on the process, unlike that of hash()
    times = scenario.scenario
    planned: list[PlannedFault] = []
    left: list[FaultConfig] = []
    stretch = 0
    while True:
        begin = times.first_s + stretch * times.every_s
        at_s = begin + rng.random() * times.spread * times.every_s
        left = left or [one for one in scenario.faults if one.weight]
        fault = rng.choices(left, [one.weight for one in left])[0]
        left = [one for one in left if one is not fault] if times.in_turn else []
        order = _order_of_pools(scenario, fault, pools, rng)
        draw, lasts_s = rng.random(), rng.uniform(fault.least_s, fault.most_s)
        if begin > duration_s - times.quiet_s:
            return tuple(planned)
        stretch += 1
        if at_s > duration_s - times.quiet_s or (POOLS_OF[fault.kind] and not order):
            continue
        planned.append(PlannedFault(len(planned) + 1, at_s, fault.kind, order, draw, lasts_s, fault))


def _order_of_pools(
    scenario: Scenario, fault: FaultConfig, pools: Sequence[str], rng: random.Random
) -> tuple[str, ...]:
    """Pools that a fault may hit, drawn one after the other by their weights."""
    allowed = fault.pools or [pool for pool in POOLS_OF[fault.kind] if pool not in ONLY_IF_NAMED]
    left = {pool: scenario.pools.weight(pool) for pool in allowed if pool in pools or pool in PARTS}
    left = {pool: weight for pool, weight in left.items() if weight > 0}
    order: list[str] = []
    while left:
        pool = rng.choices(list(left), list(left.values()))[0]
        del left[pool]
        order.append(pool)
    return tuple(order)


def choose(planned: PlannedFault, healthy: Mapping[str, Sequence[str]], keep_one: bool) -> tuple[str, str] | None:
    """Choose the replica that a fault hits.

    Args:
        healthy: names of the replicas that are listed, and neither dead nor frozen, by pool.
    Returns: pool and name; None if there is nobody whom it may hit now.
    Effects: none.
    """
    least = 2 if keep_one and planned.kind in GRAVE and planned.kind != "kill_part" else 1
    for pool in planned.pools:
        names = sorted(healthy.get(pool, ()))
        if len(names) >= least:
            return pool, names[int(planned.draw * len(names))]
    return None
