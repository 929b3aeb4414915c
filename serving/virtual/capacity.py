"""The longest sequence that a simulated system can hold, and which conversations of a workload exceed it."""

from dataclasses import dataclass

from hardware.cost.cost_model import CostModel
from hardware.cost.memory_plan import Role
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.virtual.workload.columns import RequestStream
from serving.virtual.workload.jobs import JobReplay

MODEL_LEN = 131_072
"""Longest prompt plus output of the model where the configuration names none [tokens]. Source: R1's own limit."""


def kv_blocks(config: ServeConfig, cost: CostModel, pool: str, dies: int) -> int:
    """KV blocks of one engine of a pool: of a DP group in decode, else of a whole instance.

    Args:
        dies: of the instance.
    Raises: SpecError if the model does not fit.
    """
    if pool == "decode":
        return cost.hbm_plan("decode", dies).kv_tokens // config.engine.block_tokens
    role: Role = "prefill" if pool == "prefill" else "aggregated"
    return cost.hbm_plan(role, dies).instance_kv_tokens // config.engine.block_tokens


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The longest prompt plus output that every pool holds.

    Attributes:
        tokens: the limit. reason: what sets it.
        holdable: tokens that would fit if `[engine] max_model_len` allowed them.
    """

    tokens: int
    reason: str
    holdable: int

    def remedy(self, longest: int, replay: JobReplay) -> str:
        """Settings with which a replay's longest sequence, of so many tokens, fits."""
        block, factor = replay.block_tokens, replay.scaling.prompt
        fits = int(block * factor * self.tokens / longest) / block  # prompts are scaled with whole tokens a block
        ways = [f"--length {fits:g}"] * (fits > 0)
        if self.holdable > self.tokens:
            ways.append(f"--set engine.max_model_len={min(longest, self.holdable)}")
        if longest > self.holdable:
            ways.append("larger instances")
        return f"remedies: {', '.join(ways)}"


def length_limit(config: ServeConfig, cost: CostModel) -> LengthLimit:
    """The limit of a configuration as it starts.

    Raises: SpecError if the model does not fit.
    """
    names = {"prefill": "the KV cache of a prefill instance", "decode": "the KV cache of a decode DP group"}
    held = {
        pool: kv_blocks(config, cost, pool, settings.dies_per_instance) * config.engine.block_tokens
        for pool, settings in config.pools.items()
    }
    smallest = min(held, key=lambda pool: held[pool])
    allowed = config.engine.max_model_len or MODEL_LEN
    if allowed <= held[smallest]:
        return LengthLimit(allowed, "[engine] max_model_len", held[smallest])
    return LengthLimit(held[smallest], names.get(smallest, f"the KV cache of an {smallest} instance"), held[smallest])


def lengths_warning(workload: RequestStream, limit: LengthLimit) -> str:
    """A warning about conversations that cannot complete because of long prompts, or an empty string.

    Raises: ConfigError if none can complete.
    """
    if not isinstance(workload.jobs, JobReplay):
        return ""
    longest = [1 + max(turn.prompt_tokens for turn in job.turns) for job in workload.jobs]
    above = [tokens for tokens in longest if tokens > limit.tokens]
    if not above:
        return ""
    reason = (
        f"has a prompt above {limit.tokens:,} tokens ({limit.reason}), the longest has {max(above) - 1:,}; "
        f"{limit.remedy(max(above), workload.jobs)}"
    )
    if len(above) == len(longest):
        raise ConfigError(f"{workload.name}: no conversation can complete: each {reason}")
    return f"{len(above):,} of {len(longest):,} conversations cannot complete: each {reason}"
