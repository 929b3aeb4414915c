"""A rule about keys without effect: for which commands and under which condition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from serving.config.key import keys_of
from serving.config.serve import ServeConfig

Command = Literal["serve", "deploy", "simulate", "plan"]
"""`deploy` is `serve` on an existing Ray cluster."""

SERVE: tuple[Command, ...] = ("serve", "deploy")
VIRTUAL: tuple[Command, ...] = ("simulate", "plan")
ALL: tuple[Command, ...] = ("serve", "deploy", "simulate", "plan")
PLAN: tuple[Command, ...] = ("plan",)


@dataclass(frozen=True, slots=True)
class Rule:
    """Some keys without effect.

    Args:
        commands: for which commands. when: under which additional condition.
        keys: "section.key", or "section.*" for a whole section.
        why: the condition and the remedy, to follow "has no effect".
        only_settings: apply to `--set` only; a file may contain the keys, since it describes the system for other
            commands too.
    """

    commands: tuple[Command, ...]
    keys: tuple[str, ...]
    why: str
    when: Callable[[ServeConfig], bool] = lambda config: True
    only_settings: bool = False


# Keys without effect among those for the start and the size of instances: part of the table in `inert_rules`.


def _whole_groups(config: ServeConfig) -> bool:
    """Whether no decode instance of a system that runs can change its size: it is one process."""
    return not config.decode.is_group or "decode" not in config.pools


SIZE_RULES = (
    Rule(
        SERVE,
        keys_of("autoscaler", "decode_step_npus min_decode_npus max_decode_npus"),
        "in a system that runs, unless [decode] ep is above 1: there an instance is one process, which keeps its size;"
        " only groups of ranks, and instances in virtual time (`cloudmatrix simulate`), grow and shrink",
        when=_whole_groups,
    ),
    Rule(
        SERVE,
        keys_of("autoscaler", "min_decode_npus max_decode_npus"),
        "with [autoscaler] decode_step_npus = 0: groups of ranks change their size by `cloudmatrix experts resize`",
        when=lambda config: config.autoscaler.decode_step_npus == 0,
    ),
    Rule(
        PLAN,
        ("simulation.resize_pause_s",),
        "in `cloudmatrix plan`, whose pools keep their size, only in `cloudmatrix simulate`",
    ),
    Rule(
        VIRTUAL,
        (*keys_of("autoscaler", "min_decode_npus max_decode_npus"), "simulation.resize_pause_s"),
        "with [autoscaler] decode_step_npus = 0: decode instances keep their size",
        when=lambda config: config.autoscaler.decode_step_npus == 0,
    ),
    Rule(
        VIRTUAL,
        keys_of("autoscaler", "min_decode max_decode"),
        "with [autoscaler] decode_step_npus: as many decode instances as there are change their size",
        when=lambda config: config.autoscaler.decode_step_npus > 0,
    ),
    Rule(
        SERVE,
        keys_of("autoscaler", "min_decode max_decode"),
        "with [autoscaler] decode_step_npus: as many groups of ranks as there are change their size",
        when=lambda config: config.autoscaler.decode_step_npus > 0 and not _whole_groups(config),
    ),
    Rule(
        VIRTUAL,
        ("simulation.warm_npus",),
        "where [simulation] start_s or model_load makes every start take no process's time",
        when=lambda config: config.simulation.start_s > 0 or config.simulation.model_load == "prewarmed",
    ),
    Rule(
        VIRTUAL,
        ("simulation.model_load",),
        "with [simulation] start_s, which sets the duration of a start",
        when=lambda config: config.simulation.start_s > 0,
    ),
    Rule(
        VIRTUAL,
        ("simulation.graphs_s",),
        "with [simulation] start_s and instances that keep their size",
        when=lambda config: config.simulation.start_s > 0 and config.autoscaler.decode_step_npus == 0,
    ),
)

CLAIM_KEYS = keys_of("kvcache", "retain_share pin_share max_ttl_s demote_after_s sessions branches")

CLAIM_RULES = (
    Rule(VIRTUAL, ("kvcache.pin_share",), "in virtual time: there nothing is pinned"),
    Rule(
        VIRTUAL,
        CLAIM_KEYS,
        'in virtual time without [gateway] tool_pauses = "act": there no request claims its blocks',
        when=lambda config: config.gateway.tool_pauses != "act",
    ),
    Rule(
        VIRTUAL,
        ("kvcache.demote_after_s",),
        "in virtual time with [kvcache] ssd_mib = 0: there is no SSD tier to wait on",
        when=lambda config: config.kvcache.ssd_mib == 0,
    ),
)
