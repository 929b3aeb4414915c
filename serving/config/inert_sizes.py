"""Keys without effect among those for the start and the size of instances: part of the table in `inert_rules`."""

from serving.config.inert_rule import PLAN, SERVE, VIRTUAL, Rule
from serving.config.key import keys_of
from serving.config.serve import ServeConfig


def _whole_groups(config: ServeConfig) -> bool:
    """Whether no decode instance of a system that runs can change its size: it is one process."""
    return config.decode.ep == 1 or "decode" not in config.pools


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
