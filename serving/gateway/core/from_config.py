"""Derives one gateway's settings from the configuration, for live and virtual gateways."""

from zlib import crc32

from serving.config.serve import ServeConfig
from serving.gateway.core.events import Configure
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.kv_hints import HintLimits
from serving.gateway.core.pause_times import PauseTimes
from serving.gateway.core.settings import GatewaySettings
from serving.ids import GatewayId
from serving.version import VERSION

HISTORY_TOKENS = 1 << 20
"""Prompt tokens that a gateway remembers: per instance with locality routing, otherwise for the KV-cache pool."""


def core_settings(
    config: ServeConfig, gateway: GatewayId, pools: tuple[str, ...], attention_tokens: float
) -> GatewaySettings:
    """The settings of a gateway's core.

    Args:
        pools: names of the engine pools in the order in which a request passes them.
        attention_tokens: of the model; see `PrefillCost`.
    """
    blocks = HISTORY_TOKENS // config.engine.block_tokens
    pooled = config.kvcache.replicas > 0 and config.engine.prefix_reuse
    hashed = config.gateway.routing == "locality" or pooled
    return GatewaySettings(
        name=gateway,
        pools=pools,
        max_age_s=config.health.silence_s,
        block_tokens=config.engine.block_tokens,
        history_blocks=max(1, blocks) if hashed else 0,
        rule=config.gateway.routing,
        seed=crc32(gateway.encode()),
        attention_tokens=attention_tokens,
        limits=admission_limits(config),
        max_attempts=config.engine.max_attempts,
        role_wait_s=config.gateway.role_wait_s,
        empty_role_s=config.engine.empty_role_s,
        coming=config.autoscaler.policy != "none" or any(pool.replicas for pool in config.pools.values()),
        version=VERSION,
        prefer_host=config.serving.handoff == "prefer_host",
        prefetch=pooled and config.kvcache.ssd_mib > 0 and config.kvcache.prefetch_share > 0,
    )


def configured(config: ServeConfig) -> Configure:
    """The configuration keys that a running gateway's core accepts."""
    engine = config.engine
    limits = admission_limits(config)
    return Configure(limits, engine.max_attempts, config.gateway.role_wait_s, engine.empty_role_s)


def admission_limits(config: ServeConfig) -> AdmissionLimits:
    """Limits of each gateway's queue."""
    gateway = config.gateway
    keys = len(gateway.api_keys) + len(gateway.admin_keys) + sum(len(one.api_keys) for one in config.namespaces)
    return AdmissionLimits(
        gateway.max_queued_requests,
        gateway.max_queued_tokens,
        gateway.max_running_sequences,
        shared=keys > 1,
        by_job=gateway.order == "job",
    )


def hint_limits(config: ServeConfig) -> HintLimits:
    """Limits of KV hints by the configuration."""
    kvcache, own = config.kvcache, {one.name: one.max_ttl_s for one in config.namespaces if one.max_ttl_s}
    return HintLimits(
        kvcache.max_ttl_s,
        kvcache.pin_share > 0,
        kvcache.demote_after_s,
        block_tokens=config.engine.block_tokens,
        tiered=kvcache.ssd_mib > 0,
        ttl_by_namespace=own,
    )


def pause_times(config: ServeConfig) -> PauseTimes | None:
    """A gateway's tool pauses; None if it does not learn them."""
    mode = config.gateway.tool_pauses
    if mode == "off" or not (config.kvcache.replicas and config.engine.prefix_reuse):
        return None
    return PauseTimes(hint_limits(config), acts=mode == "act")
