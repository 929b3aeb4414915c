"""Kinds of faults, the processes that each can hit, and the command that supports it.

`cloudmatrix chaos` injects faults into processes of a live system; `cloudmatrix simulate --faults` into a supernode in
virtual time. A scenario with a fault that a command does not support is refused by name before the start.
"""

from collections.abc import Mapping

from hardware.faults import TARGETS, FaultKind
from serving.errors import ConfigError
from serving.faults.scenario import ONLY_IF_NAMED, POOLS_OF, Scenario

Reach = Mapping[FaultKind, tuple[str, ...]]
"""Kinds that a command supports, each with the pools that it can hit."""

_HARDWARE = frozenset(
    {
        FaultKind.DIE,
        FaultKind.NPU,
        FaultKind.RDMA_LINK,
        FaultKind.UB_SUBPLANE,
        FaultKind.VPC_CARD,
        FaultKind.STRAGGLER,
        FaultKind.HBM,
        FaultKind.NETWORK_GLITCH,
        FaultKind.LAUNCH_JITTER,
    }
)
"""Faults of hardware that a laptop does not have."""
_LIVE_ONLY = frozenset({FaultKind.BIT_FLIP, FaultKind.FULL_DISK, FaultKind.CANCEL_BURST, FaultKind.FLOOD})
_IN_VIRTUAL_TIME = {FaultKind.KILL_PART: ("node", "gateway")}

LIVE: Reach = {kind: pools for kind, pools in POOLS_OF.items() if kind not in _HARDWARE}
VIRTUAL: Reach = {kind: _IN_VIRTUAL_TIME.get(kind, pools) for kind, pools in POOLS_OF.items() if kind not in _LIVE_ONLY}


def check_reach(scenario: Scenario, reach: Reach, command: str, pools: tuple[str, ...]) -> None:
    """Refuse a scenario with a fault that a command does not support.

    Args:
        command: for the message.
        pools: pools of the system; other pools are never hit.
    Raises: ConfigError naming each such fault, and all supported ones.
    """
    refused: list[str] = []
    for index, table in enumerate(scenario.faults):
        kind = FaultKind(table.kind)
        if not table.weight:
            continue
        hit = table.pools or [
            pool
            for pool in POOLS_OF[kind]
            if pool not in ONLY_IF_NAMED
            and (kind is FaultKind.KILL_PART or pool in pools)
            and scenario.pools.weight(pool)
        ]
        refused += _missing(f"[[faults]][{index}]", kind, tuple(hit), reach)
    for fault in scenario.fault:
        named = fault.process
        pool = () if named is None or not POOLS_OF[fault.kind] else (named[0],)
        refused += _missing(f"[[fault]] at {fault.at_s:g} s:", fault.kind, pool, reach)
    for kind in FaultKind:
        refused += _missing("[rates]", kind, (), reach) if scenario.rates.of(kind) else []
    if refused:
        raise ConfigError(f"{command} cannot do {'; '.join(refused)}. It can do {_listed(reach)}")


def _missing(where: str, kind: FaultKind, pools: tuple[str, ...], reach: Reach) -> list[str]:
    if kind not in reach:
        return [f"{where} {kind}"]
    beyond = [pool for pool in pools if pool not in reach[kind]]
    return [f"{where} {kind} of {', '.join(beyond)}"] if beyond else []


def _listed(reach: Reach) -> str:
    return ", ".join(f"{kind} ({', '.join(pools)})" if pools else str(kind) for kind, pools in reach.items())


def reach_table() -> str:
    """The kinds and the commands that support each, as a Markdown table for the documentation."""
    lines = ["| kind | target or pools | `chaos` | `simulate --faults` |", "| --- | --- | --- | --- |"]
    for kind, pools in POOLS_OF.items():
        lines.append(
            f"| `{kind}` | {', '.join(pools) or _target(kind)} | {_cell(kind, LIVE)} | {_cell(kind, VIRTUAL)} |"
        )
    return "\n".join(lines) + "\n"


def _target(kind: FaultKind) -> str:
    return f"`{TARGETS[kind].example}`" if kind in _HARDWARE else "–"


def _cell(kind: FaultKind, reach: Reach) -> str:
    if kind not in reach:
        return "no"
    return "yes" if reach[kind] == POOLS_OF[kind] else f"only {', '.join(reach[kind])}"
