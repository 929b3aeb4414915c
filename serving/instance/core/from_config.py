"""Derives one engine's settings from the configuration, for live and virtual instances."""

from serving.config.pool import PoolConfig
from serving.config.serve import ServeConfig
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.layer_split import LayerSplit


def engine_settings(
    config: ServeConfig,
    role: str,
    pool: PoolConfig,
    model_len: int,
    blocks: int,
    *,
    draft_tokens: int = 0,
    speculation: bool = False,
    forced_tokens: int = 0,
    split: LayerSplit | None = None,
) -> EngineSettings:
    """Settings of the engine of one instance, or of one DP group.

    Args:
        role: name of the pool: `prefill`, `decode` or `aggregated`.
        model_len: longest prompt plus output of the model; `[engine] max_model_len` may be shorter.
        blocks: KV blocks of the engine.
        draft_tokens, speculation, forced_tokens, split: as in `EngineSettings`.
    Raises: ConfigError for values that do not work together.
    """
    engine, kvcache = config.engine, config.kvcache
    return EngineSettings(
        role=EngineRole(role),
        block_tokens=engine.block_tokens,
        max_step_tokens=pool.max_step_tokens,
        max_sequences=pool.max_sequences,
        max_waiting=pool.max_waiting,
        max_model_len=engine.max_model_len or model_len,
        handoff_lease_s=engine.handoff_lease_s,
        prompt_delay_s=engine.prompt_delay_s,
        prefix_reuse=engine.prefix_reuse,
        pool=kvcache.replicas > 0 and engine.prefix_reuse,
        store_decoded=kvcache.stores_decoded(reasoning=config.model.reasoning),
        max_store_blocks=int(blocks * kvcache.max_store_share),
        draft_tokens=draft_tokens,
        speculation=speculation,
        forced_tokens=forced_tokens,
        split=split,
    )
