"""Counters of the work that one virtual instance did."""

from typing import NamedTuple


class WorkDone(NamedTuple):
    """Work of an instance up to a moment, the running step as far as it is. Fields: see `InstanceMeter`."""

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
        """A prefill step counts when it begins; a decode iteration when it is over, at the next change."""
        self.busy_s = 0.0
        self.prompt_tokens = 0
        self.attended_tokens = 0.0
        """Sum over computed prompt tokens of the context that each one saw."""
        self.forward_tokens = 0
        """Fed through the layers, drafts included: what experts were sent."""
        self.output_tokens = 0
        self.peak_batch = 0
        self.peak_kv_share = 0.0

    def step(self, duration_s: float, batch: int, prompt_tokens: int, attended_tokens: float, kv_share: float) -> None:
        """Count one step that begins."""
        self.steps += 1
        self.busy_s += duration_s
        self.prompt_tokens += prompt_tokens
        self.attended_tokens += attended_tokens
        self.forward_tokens += prompt_tokens
        if batch > self.peak_batch:
            self.peak_batch = batch
        if kv_share > self.peak_kv_share:
            self.peak_kv_share = kv_share
