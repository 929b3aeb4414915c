"""What a gateway is built with: whom it tells, and its router and admission queue, from the configuration."""

from zlib import crc32

from hardware.cost.model_shape import load_shape
from hardware.errors import HardwareError
from serving.config.serve import ServeConfig
from serving.ids import GatewayId
from serving.policy.gateway_admission import AdmissionLimits
from serving.policy.gateway_calls import GatewayHeader
from serving.version import VERSION

HISTORY_TOKENS = 1 << 20
"""Prompt tokens that a gateway remembers: of each instance by locality, else of the KV-cache pool."""


def gateway_header(config: ServeConfig, gateway: GatewayId) -> GatewayHeader:
    """The header of a gateway's decision log, from which its parts are made whether there is a log or not.

    Effects: reads the model's shape.
    """
    blocks = HISTORY_TOKENS // config.engine.block_tokens
    hashed = config.gateway.routing == "locality" or (config.kvcache.replicas > 0 and config.engine.prefix_reuse)
    return GatewayHeader(
        name=gateway,
        max_age_s=config.health.silence_s,
        block_tokens=config.engine.block_tokens,
        history_blocks=max(1, blocks) if hashed else 0,
        version=VERSION,
        rule=config.gateway.routing,
        seed=crc32(gateway.encode()),
        attention_tokens=attention_tokens(config),
        limits=admission_limits(config),
    )


def admission_limits(config: ServeConfig) -> AdmissionLimits:
    """Bounds of each gateway's queue. Effects: none."""
    gateway = config.gateway
    keys = len(gateway.api_keys) + len(gateway.admin_keys) + sum(len(one.api_keys) for one in config.namespaces)
    return AdmissionLimits(
        gateway.max_queued_requests, gateway.max_queued_tokens, gateway.max_running_sequences, shared=keys > 1
    )


def attention_tokens(config: ServeConfig) -> float:
    """How far a token must look back for attention to cost as much as everything else; 0 where the model's shape is
    none that the cost model knows: then all tokens cost the same.
    """
    try:
        shape = load_shape(config.model.path)
    except HardwareError:
        return 0.0
    return shape.linear_flops_per_token / (shape.layers * shape.prefill_core_flops)
