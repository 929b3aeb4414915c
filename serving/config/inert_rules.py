"""Table of keys without effect: for which command, under which condition, and where they would have an effect.

The first matching rule is reported, so more specific rules precede general ones.
"""

from serving.config.inert_expert_rules import EXPERT_RULES
from serving.config.inert_rule import ALL, CLAIM_KEYS, CLAIM_RULES, PLAN, SERVE, SIZE_RULES, VIRTUAL, Rule
from serving.config.key import keys_of
from serving.config.serve import ServeConfig
from serving.values.pool_kinds import ENGINE_POOLS


def _simulated(config: ServeConfig) -> bool:
    return config.engine.executor == "simulated"


def _one_pool(config: ServeConfig) -> bool:
    return config.one_pool


def _no_pool(config: ServeConfig) -> bool:
    return config.kvcache.replicas == 0


def _never_empty(config: ServeConfig) -> bool:
    """Whether no pool may scale to zero."""
    scaler = config.autoscaler
    least = [scaler.bounds(pool)[0] for pool in config.pools]
    if scaler.policy == "slo" and not _no_pool(config):
        least.append(scaler.min_kvcache)
    return scaler.policy != "none" and 0 not in least


def _asks_reasoning(config: ServeConfig) -> bool:
    return config.engine.prefix_reuse and config.kvcache.store_decoded == "auto"


LIVE_ONLY = Rule(VIRTUAL, (), "in virtual time, only in a system that runs (`cloudmatrix serve`)")
"""Of the keys that their sections list as `LIVE_ONLY`."""
_SCALER_KEYS = (
    "period_s utilisation hold_s manual_hold_s idle_to_zero_s npu_budget requests_per_instance"
    " decode_step_npus min_decode_npus max_decode_npus"
)
_BOUNDS = "min_prefill max_prefill min_decode max_decode min_kvcache max_kvcache"
_CACHE_KEYS = (
    "ub_memory_mib ssd_mib ssd_path write_through eviction high_water low_water slab_kib lease_s write_lease_s salt"
    " prefetch_share get_timeout_s put_timeout_s max_store_share store_decoded models scope ramp_s drain_s directory"
)
_EVENT_KEYS = "endpoint replay publishers allow_remote form hashes namespaces buffer_batches max_waiting"
_ROLES = "attention_ranks expert_ranks expert_npus expert_ub_memory_mib"
_OF_POOL = (
    *keys_of("kvcache", _CACHE_KEYS),
    *keys_of("autoscaler", "min_kvcache max_kvcache"),
    *keys_of("simulation", "pool_gb_per_s pool_plane ssd_gb_per_s"),
    "gateway.tool_pauses",
)

_IN_VIRTUAL_TIME = (
    *CLAIM_RULES,
    Rule(
        VIRTUAL,
        keys_of("engine", "drafts draft_tokens lookup_tokens forced_tokens"),
        "in virtual time: there [simulation] drafts says how many tokens a step guesses",
    ),
    Rule(
        VIRTUAL,
        (*(f"{pool}.ub_memory_mib" for pool in ENGINE_POOLS), "decode.expert_ub_memory_mib"),
        "in virtual time: there an instance has the memory of its device",
    ),
    Rule(
        VIRTUAL,
        tuple(f"{pool}.ep" for pool in ENGINE_POOLS),
        "in virtual time: there an instance's dies are its ranks",
    ),
    Rule(
        VIRTUAL,
        (*keys_of("prefill", _ROLES), *keys_of("aggregated", _ROLES)),
        "in virtual time: experts on dies of their own are priced in [decode] only",
    ),
    Rule(
        PLAN,
        keys_of("decode", "attention_ranks expert_ranks expert_npus"),
        "in `cloudmatrix plan`, which chooses the instances: see its --sizes-decode and --expert-dies",
    ),
    Rule(
        VIRTUAL,
        ("serving.handoff",),
        "in virtual time: there a handoff costs the same between any two instances",
    ),
    Rule(
        VIRTUAL,
        ("simulation.status_period_s",),
        "in virtual time with [gateway] replicas above 1: several gateways receive a report of every change",
        when=lambda config: config.gateway.replicas > 1,
    ),
    Rule(
        VIRTUAL,
        ("hardware.hbm_per_die_mib",),
        "in virtual time: there a die has the memory of [simulation] device",
        when=lambda config: config.hardware.hbm_per_die_mib != 0,
    ),
    Rule(
        VIRTUAL,
        ("engine.executor",),
        "in virtual time: all that is computed there is simulated",
        when=lambda config: not _simulated(config),
    ),
)

_STARTS = ("simulation.model_load", "simulation.start_s", "simulation.warm_npus", "simulation.graphs_s")
_KEPT_SIZES = ("engine.drain_s", "kvcache.drain_s", *_STARTS)
"""In virtual time these apply to instances that start or stop because a pool is resized."""

_IN_PLANS = (
    Rule(
        PLAN,
        ("autoscaler.*", *_KEPT_SIZES),
        "in `cloudmatrix plan`, whose pools keep their size, only in `cloudmatrix simulate`",
    ),
    Rule(
        PLAN,
        (*keys_of("prefill", "replicas"), *keys_of("decode", "replicas"), *keys_of("kvcache", "replicas")),
        "in `cloudmatrix plan`, which chooses the pools: see its --npus and --cache-nodes",
        only_settings=True,
    ),
)

_ON_EXISTING_RAY = (
    Rule(
        ("deploy",),
        (
            *keys_of("cluster", "dashboard_host dashboard_port gcs_storage restart_nodes"),
            *keys_of("cluster.nodes", "name npus ub_memory_mib cpus"),
            *keys_of("health", "node_period_s node_timeout_s node_misses"),
        ),
        "on a running Ray: its hosts, dashboard and control store are as they were started",
    ),
)

_BY_EXECUTOR = (
    Rule(
        SERVE,
        ("simulation.*",),
        'without [engine] executor = "simulated", only with it and in virtual time (`cloudmatrix simulate`)',
        when=lambda config: not _simulated(config),
    ),
    Rule(
        SERVE,
        (*keys_of("simulation", "supernodes gateway_s resize_pause_s routing ssd_gb_per_s"), *_STARTS),
        "in a system that runs, only in virtual time (`cloudmatrix simulate`)",
    ),
    Rule(
        SERVE,
        keys_of("engine", "drafts draft_tokens lookup_tokens forced_tokens"),
        'with [engine] executor = "simulated": there [simulation] drafts says how many tokens a step guesses',
        when=_simulated,
    ),
    Rule(
        SERVE,
        ("engine.draft_tokens",),
        'with [engine] drafts = "lookup", only with "layer"',
        when=lambda config: config.engine.drafts == "lookup",
    ),
    Rule(
        SERVE,
        ("engine.lookup_tokens",),
        'with [engine] drafts = "layer", only with "lookup"',
        when=lambda config: config.engine.drafts == "layer",
    ),
    Rule(
        SERVE,
        (
            *keys_of("model", "dtype device short_weights expert_results"),
            "engine.threads",
            "hardware.workspace_share",
            "kvcache.models",
        ),
        'with [engine] executor = "simulated", only where a model computes ("native", "torch")',
        when=_simulated,
    ),
    Rule(
        SERVE,
        ("model.short_weights",),
        'with [model] dtype = "float32", only with bfloat16 weights',
        when=lambda config: config.model.dtype == "float32",
    ),
    Rule(
        SERVE,
        ("model.short_weights",),
        'with [engine] executor = "torch", only in the native step',
        when=lambda config: config.engine.executor == "torch",
    ),
    Rule(
        SERVE,
        ("simulation.seed",),
        "in a system that runs without [simulation] jitter or spike_share: nothing else is drawn from it",
        when=lambda config: not (config.simulation.jitter or config.simulation.spike_share),
    ),
    Rule(
        ALL,
        ("simulation.acceptance",),
        "with [simulation] drafts = 0: nothing is drafted",
        when=lambda config: config.simulation.drafts == 0,
    ),
    Rule(
        (*SERVE, "simulate"),
        keys_of("simulation", "domains trampolines"),
        "with [simulation] expert_dies = 0: every die does attention and experts",
        when=lambda config: config.simulation.expert_dies == 0 and not config.decode.has_roles,
    ),
    Rule(
        ALL,
        ("simulation.spike_factor",),
        "with [simulation] spike_share = 0: no step is hit by a spike",
        when=lambda config: config.simulation.spike_share == 0,
    ),
)

_BY_MODE = (
    Rule(
        SERVE,
        ("cluster.restart_nodes",),
        "with one node of [[cluster.nodes]]: with the first one the system ends",
        when=lambda config: len(config.cluster.nodes) == 1,
    ),
    Rule(
        ALL,
        ("prefill.*", "decode.*", *keys_of("engine", "handoff_lease_s empty_role_s")),
        'with [serving] mode = "aggregated", where one pool does both, [aggregated]',
        when=_one_pool,
    ),
    Rule(
        SERVE,
        ("serving.handoff",),
        'with [serving] mode = "aggregated": there are no handoffs',
        when=_one_pool,
    ),
    Rule(
        SERVE,
        ("serving.handoff",),
        'with [gateway] routing = "round_robin" or "power_of_two", only with "load" or "locality"',
        when=lambda config: config.gateway.routing in ("round_robin", "power_of_two"),
    ),
    Rule(
        SERVE,
        keys_of("health", "probe_period_s probe_late_s probe_lost_s"),
        'with [serving] mode = "aggregated": there are no handoffs to probe paths for',
        when=_one_pool,
    ),
    Rule(
        SERVE,
        keys_of("autoscaler", "min_prefill max_prefill"),
        'with [serving] mode = "aggregated": min_decode and max_decode are the bounds of its pool',
        when=_one_pool,
    ),
    Rule(
        ALL,
        ("aggregated.*",),
        'with [serving] mode = "disaggregated", only with "aggregated"',
        when=lambda config: not _one_pool(config),
    ),
    Rule(
        SERVE,
        keys_of("health", "probe_late_s probe_lost_s"),
        "with [health] probe_period_s = 0: nothing is probed",
        when=lambda config: config.health.probe_period_s == 0,
    ),
    Rule(
        SERVE,
        keys_of("gateway", "max_head_bytes head_timeout_s body_timeout_s max_connections address_share"),
        'with [gateway] server = "serve", only with "uvicorn": connections are those of Ray Serve\'s proxy',
        when=lambda config: config.gateway.server == "serve",
    ),
    Rule(
        SERVE,
        ("chaos.least_step_s",),
        "without [chaos] enabled = true",
        when=lambda config: not config.chaos.enabled,
    ),
    Rule(
        SERVE,
        keys_of("kv_events", _EVENT_KEYS),
        "without [kv_events] enabled = true",
        when=lambda config: not config.kv_events.enabled,
    ),
)

_BY_POLICY = (
    Rule(
        ALL,
        keys_of("autoscaler", _SCALER_KEYS),
        'with [autoscaler] policy = "none", only with "slo" or "requests"',
        when=lambda config: config.autoscaler.policy == "none",
    ),
    Rule(
        ALL,
        keys_of("autoscaler", _BOUNDS),
        'with [autoscaler] policy = "none", only with "slo" or "requests", or with nodes = "ray"',
        when=lambda config: config.autoscaler.policy == "none" and config.autoscaler.nodes == "fixed",
    ),
    Rule(
        ALL,
        keys_of("autoscaler", "utilisation hold_s min_kvcache max_kvcache"),
        'with [autoscaler] policy = "requests", only with "slo"',
        when=lambda config: config.autoscaler.policy == "requests",
    ),
    Rule(
        ALL,
        ("autoscaler.node_wait_s",),
        'with [autoscaler] nodes = "fixed", only with "ray"',
        when=lambda config: config.autoscaler.nodes == "fixed",
    ),
    Rule(
        ALL,
        ("autoscaler.spread_after_s",),
        'with [autoscaler] nodes = "ray", only with "fixed"',
        when=lambda config: config.autoscaler.nodes == "ray",
    ),
    Rule(
        ALL,
        ("autoscaler.requests_per_instance",),
        'with [autoscaler] policy = "slo", only with "requests"',
        when=lambda config: config.autoscaler.policy == "slo",
    ),
    Rule(
        ALL,
        ("autoscaler.idle_to_zero_s",),
        "unless a pool may go to zero: set one of [autoscaler] min_prefill, min_decode, min_kvcache to 0",
        when=_never_empty,
    ),
    Rule(
        ("simulate",),
        (*_KEPT_SIZES, *keys_of("autoscaler", "nodes node_wait_s spread_after_s")),
        'in virtual time with [autoscaler] policy = "none", only with "slo" or "requests"',
        when=lambda config: config.autoscaler.policy == "none",
    ),
    Rule(
        ("simulate",),
        ("slo.attainment",),
        'in virtual time without [autoscaler] policy = "slo": the report shows the share that was reached',
        when=lambda config: config.autoscaler.policy != "slo",
    ),
)

_BY_CACHE = (
    Rule(
        ALL,
        _OF_POOL,
        "with [kvcache] replicas = 0: there is no KV-cache pool",
        when=_no_pool,
    ),
    Rule(
        SERVE,
        (*CLAIM_KEYS, *keys_of("namespaces", "quota_mib retain_mib pin_mib max_ttl_s")),
        "with [kvcache] replicas = 0: there is no KV-cache pool to have a part of",
        when=_no_pool,
    ),
    Rule(
        VIRTUAL,
        _OF_POOL,
        "in virtual time with [engine] prefix_reuse = false: nothing is kept in the KV-cache pool",
        when=lambda config: not config.engine.prefix_reuse,
    ),
    Rule(
        SERVE,
        keys_of("kvcache", "max_store_share store_decoded"),
        "with [engine] prefix_reuse = false: the KV-cache pool keeps no blocks, only weights",
        when=lambda config: not config.engine.prefix_reuse,
    ),
    Rule(
        SERVE,
        ("model.reasoning",),
        'without a KV-cache pool that asks: [kvcache] replicas above 0, store_decoded = "auto", [engine] prefix_reuse',
        when=lambda config: _no_pool(config) or not _asks_reasoning(config),
    ),
    Rule(
        ALL,
        keys_of("kvcache", "high_water low_water"),
        "with [kvcache] ssd_mib = 0: there is no SSD tier for blocks to leave for",
        when=lambda config: config.kvcache.ssd_mib == 0,
    ),
    Rule(
        ALL,
        ("kvcache.prefetch_share", "simulation.ssd_gb_per_s"),
        "with [kvcache] ssd_mib = 0: there is no SSD tier to load blocks from",
        when=lambda config: config.kvcache.ssd_mib == 0,
    ),
    Rule(
        VIRTUAL,
        ("kvcache.get_timeout_s",),
        "in virtual time with [kvcache] ssd_mib = 0: there only loads from the SSD tier take long",
        when=lambda config: config.kvcache.ssd_mib == 0,
    ),
)

RULES = (
    *(*_ON_EXISTING_RAY, *_IN_VIRTUAL_TIME, *EXPERT_RULES, *_IN_PLANS, *_BY_EXECUTOR),
    *(*_BY_MODE, *SIZE_RULES, *_BY_POLICY, *_BY_CACHE),
)
