"""Profile of an engine: the times of its steps on a device, prefill and decode apart, and what a step costs besides.

The device files are fitted to one engine, whose steps they predict. Another engine's step takes so many times as long,
and a fixed time more: that is its profile, found from its own measured steps (`engine_fit`), valid where they were.
"""

from dataclasses import dataclass

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
        work: times what the device's own calibration says that a step takes.
        step_s: added to each step [s]: host, scheduler, graph launch.
        token_s: added for each token that the fullest die computes [s]: sampling, detokenisation.
        rows: measured steps that this was fitted to; parameters: that were found from them.
        expected_error: relative, inside of what was fitted.
        region: ranges of the rows, in the order of `DECODE_RANGES` or `PREFILL_RANGES`.
        source: where the rows stand.
    """

    work: float
    step_s: float
    token_s: float
    rows: int
    parameters: int
    expected_error: float
    region: tuple[FittedRange, ...]
    source: str

    def seconds(self, base_s: float, tokens: float) -> float:
        """Duration of a step [s].

        Args:
            base_s: by the device's own calibration.
            tokens: that the fullest die computes.
        Effects: none.
        """
        return self.work * base_s + self.step_s + self.token_s * tokens


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine file.

    Attributes:
        name: of the file, without its ending.
        title: for people.
        device: that the rows are of; model: likewise.
        formats: of the rows' weights and KV; empty = 8-bit weights and BF16, as all published ones.
        decode / prefill: None = no step of that kind is known, and the device's own calibration stands in.
    """

    name: str
    title: str
    device: str
    model: str
    decode: EnginePhase | None
    prefill: EnginePhase | None
    formats: str = ""
