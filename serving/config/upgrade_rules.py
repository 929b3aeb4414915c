"""Rules for changed keys of a running system: which parties apply a key in place, and which are replaced.

Each key has exactly one rule here, which a test verifies. docs/reference/configuration.md shows it next to the key.
"""

from dataclasses import dataclass

from serving.config.key import keys_of

GATEWAY = "gateway"
KVCACHE = "kvcache"
AUTOSCALER = "autoscaler"
BOARD = "scaling board"
POOL_CONTROL = "pool control"
SERVE = "Serve"
ENGINES = ("prefill", "decode", "aggregated")
"""Engine pools; a mode starts some of them."""

NO_DEPLOYMENTS = (BOARD, POOL_CONTROL, SERVE)
"""Parties that exist in every configuration."""

BEFORE_RAY = "when Ray is started"
_ALL = (GATEWAY, *ENGINES, KVCACHE)


@dataclass(frozen=True, slots=True)
class UpgradeRule:
    """How a change of some keys takes effect.

    Args:
        keys: "section.key", or "section.*".
        restarts: parties whose replicas are replaced.
        in_place: parties that update and keep running.
    """

    keys: tuple[str, ...]
    restarts: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The rule as text for a table cell."""
        if self.restarts:
            names = "instances" if self.restarts[: len(ENGINES)] == ENGINES else self.restarts[0]
            others = self.restarts[len(ENGINES) :] if names == "instances" else self.restarts[1:]
            if others[: len(ENGINES)] == ENGINES:
                others = ("instances", *others[len(ENGINES) :])
            return f"restarts {', '.join((names, *others))}"
        return "in place" if self.in_place else BEFORE_RAY


UPGRADE_RULES = (
    # ---- in place ----
    UpgradeRule(("slo.*", "autoscaler.policy"), in_place=(GATEWAY, AUTOSCALER, BOARD)),
    UpgradeRule(
        keys_of(
            "autoscaler",
            "nodes node_wait_s spread_after_s period_s utilisation hold_s manual_hold_s idle_to_zero_s npu_budget"
            " requests_per_instance min_prefill max_prefill min_decode max_decode min_kvcache max_kvcache"
            " decode_step_npus min_decode_npus max_decode_npus",
        ),
        in_place=(AUTOSCALER, BOARD),
    ),
    UpgradeRule(("namespaces.*",), in_place=(GATEWAY, POOL_CONTROL)),
    UpgradeRule(
        keys_of(
            "gateway",
            "api_keys api_key_file admin_keys max_body_bytes max_head_bytes head_timeout_s body_timeout_s"
            " max_connections address_share request_timeout_s max_running_sequences max_queued_requests"
            " max_queued_tokens max_n max_request_sequences max_logprob_entries role_wait_s drain_s root_path"
            " allowed_origins allowed_hosts",
        ),
        in_place=(GATEWAY,),
    ),
    UpgradeRule(keys_of("engine", "max_attempts empty_role_s"), in_place=(GATEWAY,)),
    UpgradeRule(("engine.drain_s",), in_place=ENGINES),
    UpgradeRule(("kvcache.drain_s",), in_place=(KVCACHE,)),
    UpgradeRule(("kvcache.ramp_s",), in_place=(POOL_CONTROL,)),
    UpgradeRule(keys_of("health", "shell_period_s shell_timeout_s"), in_place=(SERVE,)),
    # Adding or removing a pool, and a change between one and several gateways, restart dependent parties: see
    # `essence`.
    UpgradeRule(tuple(f"{pool}.replicas" for pool in ENGINES), in_place=(SERVE,)),
    UpgradeRule(("kvcache.replicas",), in_place=(SERVE,)),
    UpgradeRule(("gateway.replicas",), in_place=(SERVE,)),
    # ---- the process that starts Ray ----
    UpgradeRule(
        (*keys_of("cluster", "dashboard_host dashboard_port gcs_storage restart_nodes"), "cluster.nodes.*"),
    ),
    UpgradeRule(keys_of("health", "node_period_s node_timeout_s node_misses")),
    # ---- restarts ----
    UpgradeRule(keys_of("gateway", "host port server routing response_store"), (GATEWAY,)),
    UpgradeRule(
        keys_of("gateway", "kept_responses kept_responses_mib kept_response_s timelines trace_endpoint trace_share"),
        (GATEWAY,),
    ),
    UpgradeRule(("model.*", "serving.mode"), (GATEWAY, *ENGINES)),
    UpgradeRule(("serving.handoff",), (GATEWAY,)),
    UpgradeRule(("simulation.*",), (GATEWAY, *ENGINES, AUTOSCALER)),
    UpgradeRule(("engine.executor",), (*_ALL, AUTOSCALER)),
    UpgradeRule(
        keys_of("engine", "block_tokens kv_dtype max_model_len prefix_reuse decision_log"), (GATEWAY, *ENGINES)
    ),
    UpgradeRule(
        keys_of("engine", "draft_tokens forced_tokens prompt_delay_s handoff_lease_s stall_timeout_s threads"),
        ENGINES,
    ),
    UpgradeRule(("hardware.*", "experts.*"), ENGINES),
    UpgradeRule(keys_of("health", "link_period_s link_misses"), (GATEWAY, *ENGINES)),
    UpgradeRule(keys_of("health", "step_stall_s step_factor probe_period_s probe_late_s probe_lost_s"), ENGINES),
    UpgradeRule(("cluster.log_format",), (*_ALL, AUTOSCALER)),
    UpgradeRule(("chaos.*", "cluster.port_range"), _ALL),
    UpgradeRule(("cluster.ray_metrics",), (GATEWAY, *ENGINES)),
    UpgradeRule(
        keys_of(
            "kvcache",
            "ub_memory_mib ssd_mib write_through eviction high_water low_water slab_kib lease_s write_lease_s",
        ),
        (KVCACHE,),
    ),
    UpgradeRule(keys_of("kvcache", "get_timeout_s put_timeout_s max_store_share store_decoded models"), ENGINES),
    UpgradeRule(("kvcache.scope", "kvcache.ssd_path"), (*ENGINES, KVCACHE)),
    UpgradeRule(("kvcache.directory", "kvcache.salt"), (GATEWAY,)),
    *(
        UpgradeRule(keys_of(pool, "ub_memory_mib max_step_tokens max_sequences max_waiting"), (pool,))
        for pool in ENGINES
    ),
    *(UpgradeRule(keys_of(pool, "npus_per_instance ep"), (GATEWAY, pool)) for pool in ENGINES),
)

OF_SIMULATED_MEMORY = ("model.path", "engine.block_tokens", "simulation.kv_shrink")
"""Keys that also restart memory servers if KV is only accounted and not stored."""
