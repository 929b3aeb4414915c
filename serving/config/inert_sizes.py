"""Keys without effect among those for the start and the size of instances: part of the table in `inert_rules`."""

from serving.config.inert_rule import PLAN, SERVE, VIRTUAL, Rule
from serving.config.key import keys_of

SIZE_RULES = (
    Rule(
        SERVE,
        keys_of("autoscaler", "decode_step_npus min_decode_npus max_decode_npus"),
        "in a system that runs, whose groups of ranks change their size by `cloudmatrix experts resize`, "
        "only in virtual time (`cloudmatrix simulate`)",
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
        VIRTUAL,
        ("simulation.warm_npus",),
        "where [simulation] start_s or model_load says that no process is waited for",
        when=lambda config: config.simulation.start_s > 0 or config.simulation.model_load == "prewarmed",
    ),
    Rule(
        VIRTUAL,
        ("simulation.model_load",),
        "with [simulation] start_s, which says how long a start takes",
        when=lambda config: config.simulation.start_s > 0,
    ),
    Rule(
        VIRTUAL,
        ("simulation.graphs_s",),
        "with [simulation] start_s and instances that keep their size",
        when=lambda config: config.simulation.start_s > 0 and config.autoscaler.decode_step_npus == 0,
    ),
)
