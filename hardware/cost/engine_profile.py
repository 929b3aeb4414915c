"""Profile of an engine: step times on a device for prefill and decode, and the host's cost per step.

The device files are fitted to one engine, whose steps they predict. Another engine's step takes so many times as long,
and a fixed time more: that is its profile, found from its own measured steps (`engine_fit`), valid where they were.
Other known times (host time, captured graphs, sampling) are stated by the user, not fitted.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

from hardware.cost.loads import DecodeLoad

DECODE_RANGES = ("batch_per_npu", "context_tokens", "dies", "drafts")
PREFILL_RANGES = ("tokens_per_die", "prompt_tokens", "dies", "cached_share")
"""What a fitted region is stated in: sequences per NPU; tokens that a die computes in a step; shares of a prompt."""


@dataclass(frozen=True, slots=True)
class FittedRange:
    """One quantity of the measured steps, from its smallest to its largest value."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EnginePhase:
    """Steps of one kind.

    Attributes:
        work: factor on the step time by the device's own calibration.
        step_s: added to each step [s]: host, scheduler, graph launch.
        token_s: added for each token that the fullest die computes [s]: sampling, detokenisation.
        rows: measured steps that this was fitted to; parameters: that were found from them.
        expected_error: relative, inside of what was fitted.
        region: ranges of the rows, in the order of `DECODE_RANGES` or `PREFILL_RANGES`.
        source: origin of the rows.
        host_step_s: the host prepares each step for so long [s]: scheduler, input tensors, launch.
        host_sequence_s: and for so long more for each sequence [s]; only of decode, as all that follow but the next.
        overlapped: the host prepares the next step while the device computes, so that the slower one determines the
        time; else both. sampling_sequence_s: the engine's own sampling, for each sequence [s]. graph_batches: sequences
        for which graphs are captured, rising; a smaller batch is padded up to the next one. Padding has no cache and no
        expert computation. Empty = any batch runs as it is. eager_step_s: added to a step beyond the largest graph [s].
    """

    work: float
    step_s: float
    token_s: float
    rows: int
    parameters: int
    expected_error: float
    region: tuple[FittedRange, ...]
    source: str
    host_step_s: float = 0.0
    host_sequence_s: float = 0.0
    overlapped: bool = False
    sampling_sequence_s: float = 0.0
    graph_batches: tuple[int, ...] = ()
    eager_step_s: float = 0.0

    def seconds(self, base_s: float, tokens: float, sequences: float = 0.0) -> float:
        """Duration of a step [s].

        Args:
            base_s: by the device's own calibration, of a padded batch.
            tokens: that the fullest die computes.
            sequences: of the fullest die or group, without padding; only decode has them.
        """
        fitted_s = self.work * base_s + self.step_s + self.token_s * tokens
        if not self.stated:
            return fitted_s
        device_s = fitted_s + self.sampling_sequence_s * sequences + self.eager_s(sequences)
        host_s = self.host_s(sequences)
        return max(device_s, host_s) if self.overlapped else device_s + host_s

    @property
    def stated(self) -> bool:
        """Whether anything was stated by hand."""
        return bool(self.host_step_s or self.host_sequence_s or self.sampling_sequence_s or self.graph_batches)

    def host_s(self, sequences: float) -> float:
        """Time in which the host prepares a step [s]."""
        return self.host_step_s + self.host_sequence_s * sequences

    def eager_s(self, sequences: float) -> float:
        """Additional time of a step without a graph [s]."""
        return self.eager_step_s if self.graph_batches and sequences > self.graph_batches[-1] else 0.0

    def padded(self, load: DecodeLoad) -> DecodeLoad:
        """A decode step's load as the captured graphs run it."""
        graphs = self.graph_batches
        if not graphs or not 0 < load.requests < graphs[-1]:
            return load
        batch = graphs[bisect_left(graphs, load.requests)]
        if batch == load.requests:
            return load
        mean = load.requests if load.mean_requests is None else load.mean_requests
        return replace(load, requests=float(batch), mean_requests=mean)


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine file.

    Attributes:
        name: of the file, without its ending.
        title: for people.
        device: that the rows are of; model: the rows' model.
        formats: of the rows' weights and KV; empty = 8-bit weights and BF16, as all published ones.
        decode / prefill: None = steps of that kind are unknown, and the device's own calibration is used.
    """

    name: str
    title: str
    device: str
    model: str
    decode: EnginePhase | None
    prefill: EnginePhase | None
    formats: str = ""
