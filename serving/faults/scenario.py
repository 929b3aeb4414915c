"""A scenario: faults, their times and targets, and the load. One TOML file; each key has a help text.

[scenario] how long, how often   [pools] what may be hit   [load] the requests of `cloudmatrix chaos`
[[faults]] drawn, one every so often: one table per kind   [[fault]] at a fixed time   [rates] drawn, per unit and hour
[[command]] of an operator, at a fixed time

`cloudmatrix chaos --scenario` and `cloudmatrix simulate --faults` read it; `reach` lists the faults that each supports.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from hardware.errors import HardwareError
from hardware.faults import NO_FAULTS, TARGETS, Fault, FaultKind, FaultRates, faults_from, rates_from
from loadgen.quantities import parse_duration
from serving.config.key import key
from serving.config.load import Reader, load_sections
from serving.errors import ConfigError
from serving.values.pool_kinds import ENGINE_POOLS

PARTS = (
    "agents", "dashboard", "monitors", "node", "controller", "gcs", "board", "pool_control", "membership", "gateway",
    "reaper", "shell",
)  # fmt: skip
"""Processes outside the pools; `serving.tools.chaos.machines` finds them."""
RANKS = ("attention_rank", "expert_rank")
"""Ranks of groups that have both kinds: they are processes of the engine pools as well."""
ONLY_IF_NAMED = ("node", "shell", *RANKS)
"""Processes that a fault hits only if its `pools` name them: a node takes down all processes on it, for as long as a
start, and shells and these ranks exist only if instances have ranks."""
POOLS_OF: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.KILL: (*ENGINE_POOLS, "kvcache", *RANKS),
    FaultKind.KILL_PART: PARTS,  # except for `ONLY_IF_NAMED`
    FaultKind.FREEZE: (*ENGINE_POOLS, "kvcache", *RANKS),
    FaultKind.BIT_FLIP: ("decode", "kvcache"),
    FaultKind.SLOW_LINK: ENGINE_POOLS,
    FaultKind.FULL_DISK: ("kvcache",),
    FaultKind.CANCEL_BURST: (),
    FaultKind.FLOOD: (),
    FaultKind.MEMORY_SERVER: ("kvcache",),
    FaultKind.GATEWAY: ("gateway",),
    FaultKind.NODE: ("node",),
    FaultKind.DIE: (),
    FaultKind.NPU: (),
    FaultKind.RDMA_LINK: (),
    FaultKind.UB_SUBPLANE: (),
    FaultKind.VPC_CARD: (),
    FaultKind.STRAGGLER: (),
    FaultKind.HBM: (),
    FaultKind.NETWORK_GLITCH: (),
    FaultKind.LAUNCH_JITTER: (),
}
"""Pools whose processes a fault can hit; other faults hit a unit of the hardware, or only clients."""
LASTING = frozenset(
    {
        FaultKind.FREEZE,
        FaultKind.SLOW_LINK,
        FaultKind.BIT_FLIP,
        FaultKind.FULL_DISK,
        FaultKind.FLOOD,
        FaultKind.RDMA_LINK,
        FaultKind.UB_SUBPLANE,
        FaultKind.VPC_CARD,
        FaultKind.STRAGGLER,
        FaultKind.LAUNCH_JITTER,
    }
)
"""Kinds whose duration is drawn between `least_s` and `most_s`; the others last as long as recovery takes."""
FROM_INSIDE: frozenset[FaultKind] = frozenset({FaultKind.BIT_FLIP, FaultKind.SLOW_LINK, FaultKind.FULL_DISK})
"""Faults that replicas inject into themselves: they need `[chaos] enabled` in the system's configuration."""


@dataclass(frozen=True, slots=True)
class TimesConfig:
    """`[scenario]`"""

    duration_s: float = key("length of the run, without reference and audit [s]", default=60.0, low=1.0, high=7 * 86400)
    config: str = key("system to start when none is given, relative to this file; empty = give one", default="")
    first_s: float = key("load alone, before the first fault [s]", default=5.0, low=0.0)
    every_s: float = key("one fault in each stretch of this length [s]", default=20.0, low=0.1)
    spread: float = key(
        "share of the stretch in which its fault may come, drawn; 0 = always at the beginning",
        default=0.5,
        low=0.0,
        high=1.0,
    )
    in_turn: bool = key(
        "each table of [[faults]] comes once before any comes again; weights say which come first", default=False
    )
    quiet_s: float = key("load alone, after the last fault [s]", default=15.0, low=0.0)
    most_down_s: float = key(
        "a run has failed if `/ready` says no, or nothing, for longer than this in one piece [s]", default=15.0, low=0.0
    )
    settle_s: float = key(
        "most that the system may take to be at rest once the load has ended [s]", default=60.0, low=1.0
    )


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """`[load]`"""

    rate_per_s: float = key("requests sent each second, evenly", default=2.0, low=0.01, high=1000)
    asks: int = key("distinct requests, sent again and again in turns", default=36, low=1, high=10_000)
    longest_tokens: int = key("output tokens of the longest answers", default=300, low=4, high=100_000)
    long_prompt_tokens: int = key("about how long the long prompts are [tokens]", default=700, low=16, high=1_000_000)
    deadline_s: float = key("a request that takes longer has failed [s]", default=120.0, low=1.0)
    tools: bool = key("some requests call a tool; the model must know how", default=False)


@dataclass(frozen=True, slots=True)
class PoolsConfig:
    """`[pools]`: weights of the pools as targets; 0 = never."""

    prefill: float = key("weight of prefill instances", default=1.0, low=0.0, high=1e6)
    decode: float = key("weight of decode instances", default=1.0, low=0.0, high=1e6)
    aggregated: float = key("weight of instances that do both", default=1.0, low=0.0, high=1e6)
    kvcache: float = key("weight of memory servers", default=1.0, low=0.0, high=1e6)
    keep_one: bool = key(
        "never kill or freeze a pool's only healthy replica; another pool is hit instead", default=True
    )

    def weight(self, pool: str) -> float:
        """Weight of one pool; parts have 1."""
        return float(getattr(self, pool)) if pool in (*ENGINE_POOLS, "kvcache") else 1.0


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """One of `[[faults]]`."""

    kind: FaultKind = key(
        "`kill` = SIGKILL; `kill_part` = SIGKILL to what stands beside the pools; "
        "`freeze` = SIGSTOP, later SIGCONT; `bit_flip` = one bit of a stored block, or of a handoff "
        "on its way; `slow_link` = a replica's moves of KV take longer; `full_disk` = an SSD tier takes nothing; "
        "`cancel_burst` = many requests at once whose clients leave; "
        "`flood` = another API key keeps many long streams running; the kinds of hardware are those of `[[fault]]`"
    )
    weight: float = key("how often, compared with the other kinds", default=1.0, low=0.0, high=1e6)
    pools: tuple[str, ...] = key("whom it may hit; empty = all that it can", default=())
    least_s: float = key("shortest duration; the real one is drawn [s]", default=2.0, low=0.0)
    most_s: float = key("longest duration [s]", default=8.0, low=0.0)
    until_replaced: bool = key("`freeze`: no SIGCONT, it must be replaced", default=False)
    delay_s: float = key("`slow_link`: what each move takes longer [s]", default=0.5, low=0.0, high=60.0)
    count: int = key(
        "`cancel_burst`: requests; `bit_flip`: bits; `flood`: streams at once", default=8, low=1, high=1000
    )


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """One of `[[command]]`: `cloudmatrix experts resize` or `switch` for a decode instance, in virtual time."""

    at_s: float = key("when, from the start of the run [s]", low=0.0)
    instance: int = key("number of the decode instance, in the order of their start", default=0, low=0)
    attention_ranks: int = key("`resize`: attention ranks that it is to have; 0 = as before", default=0, low=0)
    expert_ranks: int = key("`resize`: expert ranks that it is to have; 0 = as before", default=0, low=0)
    switch_to: Literal["", "attention", "experts"] = key(
        "`switch`: role of the rank that replaces the last rank of the other role", default=""
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A parsed scenario file."""

    scenario: TimesConfig = field(default_factory=TimesConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    pools: PoolsConfig = field(default_factory=PoolsConfig)
    faults: tuple[FaultConfig, ...] = ()
    fault: tuple[Fault, ...] = ()
    rates: FaultRates = NO_FAULTS
    command: tuple[CommandConfig, ...] = ()

    @property
    def kinds(self) -> frozenset[FaultKind]:
        """Kinds of all faults that may occur."""
        drawn = {FaultKind(table.kind) for table in self.faults if table.weight}
        rated = {kind for kind in FaultKind if self.rates.of(kind)}
        return frozenset(drawn | {fault.kind for fault in self.fault} | rated)

    @property
    def needs_hooks(self) -> bool:
        """Whether replicas must inject faults into themselves."""
        return bool(self.kinds & FROM_INSIDE)

    @property
    def has_flood(self) -> bool:
        """Whether there is a second tenant."""
        return FaultKind.FLOOD in self.kinds


def load_scenario(path: Path, flag: str = "--scenario") -> Scenario:
    """Read a scenario.

    Args:
        flag: command line flag of the file.
    Raises: ConfigError if the file cannot be read, or is invalid.
    """
    seconds = partial(parse_duration, plain=None)
    others: dict[str, Reader] = {"fault": partial(faults_from, duration=seconds), "rates": rates_from}
    try:
        scenario = load_sections(path, Scenario, flag, others)
    except HardwareError as error:
        raise ConfigError(str(error)) from error
    try:
        check_scenario(scenario)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return scenario


def check_scenario(scenario: Scenario) -> None:
    """Raises: ConfigError for faults that cannot hit the pools that they name, reversed durations, unclear commands."""
    for index, fault in enumerate(scenario.faults):
        where = f"[[faults]][{index}] {fault.kind}"
        wrong = [pool for pool in fault.pools if pool not in POOLS_OF[fault.kind]]
        if wrong:
            possible = ", ".join(POOLS_OF[fault.kind]) or "nobody: leave `pools` out"
            raise ConfigError(f"{where}: pools = {list(fault.pools)}, but it can hit {possible}")
        if fault.most_s < fault.least_s:
            raise ConfigError(f"{where}: most_s = {fault.most_s:g} is below least_s = {fault.least_s:g}: raise it")
        if fault.until_replaced and fault.kind != FaultKind.FREEZE:
            raise ConfigError(f"{where}: until_replaced goes with `freeze` only")
    for command in scenario.command:
        if bool(command.switch_to) == bool(command.attention_ranks or command.expert_ranks):
            raise ConfigError(
                f"[[command]] at {command.at_s:g} s: give attention_ranks, expert_ranks or both; or switch_to alone"
            )
    for timed in scenario.fault:
        if math.isinf(timed.duration_s) and timed.kind in FROM_INSIDE | {FaultKind.FLOOD}:
            raise ConfigError(f"[[fault]] {timed.kind} at {timed.at_s:g} s: duration_s must be finite")
        pools, named = POOLS_OF[timed.kind], timed.process
        if pools and (named is None or named[0] not in pools):
            raise ConfigError(
                f"[[fault]] {timed.kind} at {timed.at_s:g} s: target {timed.target!r}; it can hit {', '.join(pools)}"
            )


def check_flood_keys(scenario: Scenario, api_key: str | None, flood_api_key: str | None) -> None:
    """Raises: ConfigError if a flood would not be from another tenant than the load."""
    if not scenario.has_flood:
        return
    if not (api_key and flood_api_key):
        raise ConfigError("the scenario has a `flood`, from another tenant: give both --api-key and --flood-api-key")
    if api_key == flood_api_key:
        raise ConfigError("--flood-api-key is the key of --api-key: a `flood` needs that of another tenant")


def config_path(scenario: Scenario, file: Path) -> Path | None:
    """The system configuration that a scenario names; None if it names none.

    Raises: ConfigError if it is not a file name.
    """
    named = scenario.scenario.config
    try:
        return (file.parent / Path(named).expanduser()).resolve() if named else None
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{file}: [scenario] config = {named!r} is no name of a file ({error})") from None


# Kinds of faults, the processes that each can hit, and the command that supports it.
#
# `cloudmatrix chaos` injects faults into processes of a live system; `cloudmatrix simulate --faults` into a supernode
# in virtual time. A scenario with a fault that a command does not support is refused by name before the start.

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
_IN_VIRTUAL_TIME = {
    FaultKind.KILL_PART: ("node", "gateway"),
    FaultKind.KILL: (*ENGINE_POOLS, "kvcache"),
    FaultKind.FREEZE: (*ENGINE_POOLS, "kvcache"),
}

LIVE: Reach = {kind: pools for kind, pools in POOLS_OF.items() if kind not in _HARDWARE}
VIRTUAL: Reach = {kind: _IN_VIRTUAL_TIME.get(kind, pools) for kind, pools in POOLS_OF.items() if kind not in _LIVE_ONLY}


def check_reach(scenario: Scenario, reach: Reach, command: str, pools: tuple[str, ...]) -> None:
    """Refuse a scenario with a fault that a command does not support.

    Args:
        command: for the message.
        pools: pools of the system; other pools are never hit.
    Raises: ConfigError naming each such fault, and all supported ones; for commands that are not in virtual time.
    """
    if scenario.command and reach is LIVE:
        raise ConfigError(
            f"{command} cannot do [[command]], only cloudmatrix simulate: in a system that runs, use cloudmatrix"
            " experts resize and cloudmatrix experts switch"
        )
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
