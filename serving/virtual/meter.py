"""Counters of the work that one virtual instance did."""

from typing import NamedTuple


class WorkDone(NamedTuple):
    """Work of an instance up to a moment, including the finished part of the running step; see `InstanceMeter`."""

    busy_s: float
    prompt_tokens: int
    forward_tokens: int
    attended_tokens: float = 0.0


class InstanceMeter:
    """Counters of one instance; they only grow."""

    __slots__ = (
        "attended_tokens",
        "busy_s",
        "forward_tokens",
        "output_tokens",
        "peak_batch",
        "peak_kv_share",
        "prompt_tokens",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        """A prefill step is counted at its start, decode iterations at the next change after their end."""
        self.busy_s = 0.0
        self.prompt_tokens = 0
        self.attended_tokens = 0.0
        """Sum over computed prompt tokens of the context that each attends to [tokens]."""
        self.forward_tokens = 0
        """Tokens fed through the layers, including draft tokens; they determine the expert traffic."""
        self.output_tokens = 0
        self.peak_batch = 0
        self.peak_kv_share = 0.0

    def step(self, duration_s: float, batch: int, prompt_tokens: int, attended_tokens: float, kv_share: float) -> None:
        """Count a step at its start."""
        self.steps += 1
        self.busy_s += duration_s
        self.prompt_tokens += prompt_tokens
        self.attended_tokens += attended_tokens
        self.forward_tokens += prompt_tokens
        if batch > self.peak_batch:
            self.peak_batch = batch
        if kv_share > self.peak_kv_share:
            self.peak_kv_share = kv_share
