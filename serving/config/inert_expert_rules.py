"""Keys of `[experts]` without effect; a part of the table in `inert_rules`."""

from serving.config.inert_rule import SERVE, VIRTUAL, Rule

EXPERT_RULES = (
    Rule(
        VIRTUAL,
        ("experts.*",),
        "in virtual time without [simulation] routing: there experts are as unequal as the device was fitted",
        when=lambda config: not config.simulation.routing,
    ),
    Rule(
        VIRTUAL,
        ("experts.most_ranks",),
        "in virtual time without [decode] expert_ranks: only [[command]] of a scenario changes numbers of ranks there",
        when=lambda config: not config.decode.has_roles,
    ),
    Rule(
        VIRTUAL,
        ("experts.min_gain", "experts.move_mib_per_s"),
        'in virtual time with [experts] policy = "none": no operator moves experts there',
        when=lambda config: config.experts.policy == "none",
    ),
    Rule(
        SERVE,
        ("experts.*",),
        "where no instance has several ranks: the experts of a single process are all at hand",
        when=lambda config: not any(pool.is_group for pool in config.pools.values()),
    ),
    Rule(
        SERVE,
        ("experts.shared",),
        "where no instance has attention_ranks and expert_ranks: ranks of ep compute shared experts for their own rows",
        when=lambda config: not any(pool.has_roles for pool in config.pools.values()),
    ),
    Rule(
        SERVE,
        ("experts.min_gain",),
        'with [experts] policy = "none": only operators move experts then, whatever the gain',
        when=lambda config: config.experts.policy == "none",
    ),
    Rule(
        SERVE,
        ("experts.move_mib_per_s",),
        'with [experts] slots = "mapped": slots point to the weights, nothing is copied',
        when=lambda config: config.experts.slots == "mapped",
    ),
)
