"""Scaling of a trace's rate and lengths.

The rate compresses time, so that daily variation shrinks together with the gaps. Lengths: see `loadgen.trace.scaling`.
"""

from dataclasses import dataclass, replace

import numpy as np

from loadgen.trace.scaling import scaled_block, scaled_lengths, scaled_prompts
from serving.errors import ConfigError
from serving.virtual.workload.columns import Columns, IntArray


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors, all above 0: `rate` on arrivals per second, `prompt` and `output` on lengths."""

    rate: float = 1.0
    prompt: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        for name, factor in (("rate", self.rate), ("prompt length", self.prompt), ("output length", self.output)):
            if not 0 < factor <= 1e6:
                raise ConfigError(f"the factor of {name} is {factor:g}; it must be above 0 (and at most 10^6)")

    def block_tokens(self, trace_block_tokens: int) -> int:
        """Length of one trace block after scaling [tokens].

        Raises: ConfigError if that is less than half a token.
        """
        scaled = scaled_block(trace_block_tokens, self.prompt)
        if not scaled:
            raise ConfigError(
                f"prompts times {self.prompt:g} leave nothing of the trace's blocks of {trace_block_tokens} tokens; "
                f"take at least {1 / trace_block_tokens:g}"
            )
        return scaled

    def apply(self, columns: Columns, trace_block_tokens: int | None) -> Columns:
        """Scaled requests.

        Args:
            trace_block_tokens: before scaling; None = the trace has no ids, and lengths are not aligned to blocks.
        """
        return replace(
            columns,
            arrival_s=columns.arrival_s / self.rate,
            prompt_tokens=self._prompts(columns.prompt_tokens, trace_block_tokens),
            output_tokens=_scaled(columns.output_tokens, self.output),
        )

    def _prompts(self, tokens: IntArray, trace_block_tokens: int | None) -> IntArray:
        if trace_block_tokens is None or self.prompt == 1.0:
            return _scaled(tokens, self.prompt)
        return scaled_prompts(tokens, trace_block_tokens, self.prompt)

    def said(self) -> list[str]:
        """Differences from the trace, for the name of the workload."""
        factors = (("rate", self.rate), ("prompts", self.prompt), ("answers", self.output))
        return [f"{name} × {factor:g}" for name, factor in factors if factor != 1]


def _scaled(tokens: IntArray, factor: float) -> IntArray:
    """Lengths times a factor, rounded, at least 1."""
    return tokens if factor == 1.0 else np.maximum(1, scaled_lengths(tokens, factor))
