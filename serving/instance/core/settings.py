"""Settings of one instance's engine: its role and its limits."""

from dataclasses import dataclass
from enum import Enum

from serving.config.engine import PoolConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.instance.core.scheduler import SchedulerLimits
from serving.values.layer_split import LayerSplit
from serving.values.pool_kinds import POOL_KINDS

_STEPS_AHEAD = 2
"""With a pool, prompts are admitted for the running step and the next one: a fetch takes less time than a step."""


class EngineRole(Enum):
    """An instance's role: the next phase of a sequence whose prompt is done."""

    PREFILL = "prefill"
    """Sample one token, then hold the blocks for a decode instance."""
    DECODE = "decode"
    """Continue with decoding; also accepts handoffs and resumed sequences."""
    AGGREGATED = "aggregated"
    """Continue with decoding; one pool does both."""

    @property
    def prefills(self) -> bool:
        """Whether every sequence of its pool is prefilled there."""
        return POOL_KINDS[self.value].prefills

    @property
    def decodes(self) -> bool:
        """Whether it continues with decoding."""
        return POOL_KINDS[self.value].decodes


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an `InstanceEngine`.

    Args:
        role: an `EngineRole`, or its value as a string.
        block_tokens: tokens per KV block.
        max_step_tokens: tokens fed by one step; bounds how long a chunk delays running decodes.
        max_sequences: sequences computing at one time.
        max_waiting: sequences that may queue before the next one is refused.
        max_model_len: prompt plus output of one sequence.
        watermark_blocks: blocks that admission leaves free for the running batch to grow into.
        prompt_delay_s: delay of a prompt's turn per 1,000 of its tokens.
        handoff_lease_s: how long finished prefills wait for their acknowledgement.
        prefix_reuse: match and publish full blocks by prefix hash.
        cache_decoded: also publish blocks with generated tokens.
        pool: use a KV-cache pool: fetch prompts' prefixes from it, store full blocks in it.
        store_decoded: also store blocks with generated tokens.
        max_store_blocks: full blocks that may wait to be copied into the pool.
        draft_tokens: tokens beyond the first that one step may add to a decoding sequence; it gets blocks for them.
        speculation: plans and results carry draft tokens, up to `draft_tokens` per step; otherwise the executor drafts
            internally.
        forced_tokens: maximum number of grammar-forced draft tokens per step, with or without speculation.
        lookup_tokens: maximum number of draft tokens per step that are looked up in a sequence's own text; not with
            `speculation`.
        split: distribution of layers over blocks if some have a sliding window; None = each block has all layers.
    Raises: ConfigError for a value that cannot work.
    """

    role: EngineRole = EngineRole.AGGREGATED
    block_tokens: int = 16
    max_step_tokens: int = 512
    max_sequences: int = 32
    max_waiting: int = 256
    max_model_len: int = 4096
    watermark_blocks: int = 2
    handoff_lease_s: float = 30.0
    prompt_delay_s: float = 0.0
    prefix_reuse: bool = True
    cache_decoded: bool = True
    pool: bool = False
    store_decoded: bool = True
    max_store_blocks: int = 64
    draft_tokens: int = 0
    speculation: bool = False
    forced_tokens: int = 0
    lookup_tokens: int = 0
    split: LayerSplit | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "role", EngineRole(self.role))
        except ValueError:
            names = ", ".join(role.value for role in EngineRole)
            raise ConfigError(f"role must be one of {names}, got {self.role!r}") from None
        for name in ("block_tokens", "max_step_tokens", "max_sequences", "max_waiting", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.watermark_blocks < 0:
            raise ConfigError(f"watermark_blocks must not be negative, got {self.watermark_blocks}")
        if self.pool and not self.prefix_reuse:
            raise ConfigError("a KV-cache pool needs prefix_reuse: its blocks are identified by prefix hash")
        for name in ("max_store_blocks", "draft_tokens", "forced_tokens", "lookup_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.speculation and not self.draft_tokens:
            raise ConfigError("speculation needs draft_tokens of at least 1")
        if self.speculation and self.lookup_tokens:
            raise ConfigError("draft tokens come from the draft layer or from lookup, not from both")
        if self.prompt_delay_s < 0:
            raise ConfigError(f"prompt_delay_s must not be negative, got {self.prompt_delay_s}")
        if self.handoff_lease_s <= 0:
            raise ConfigError(f"handoff_lease_s must be positive, got {self.handoff_lease_s}")
        if self.role.decodes and self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_sequences ({self.max_sequences}): "
                "every running sequence decodes one token per step"
            )

    @property
    def scheduler_limits(self) -> SchedulerLimits:
        """The scheduler's part of the settings."""
        ahead = _STEPS_AHEAD * self.max_step_tokens if self.pool else 0
        return SchedulerLimits(
            self.max_step_tokens,
            self.max_sequences,
            self.watermark_blocks,
            ahead,
            0 if self.speculation else self.draft_tokens,
        )


# Derives one engine's settings from the configuration, for live and virtual instances.


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
    lookup_tokens: int = 0,
    split: LayerSplit | None = None,
) -> EngineSettings:
    """Settings of the engine of one instance, or of one DP group.

    Args:
        role: name of the pool.
        model_len: longest prompt plus output of the model; `[engine] max_model_len` may be shorter.
        blocks: KV blocks of the engine.
        draft_tokens, speculation, forced_tokens, lookup_tokens, split: as in `EngineSettings`.
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
        lookup_tokens=lookup_tokens,
        split=split,
    )
