"""Inputs and results of the cost model: the load of one step, as plain values."""

from dataclasses import dataclass

from hardware.units import Seconds


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """One decode step of one instance; all dies run in step, so the fullest one counts.

    Attributes:
        requests: sequences on the fullest die, or where dies share their sequences, on the fullest group of them.
        context_tokens: sum of their context lengths [tokens].
        mean_requests: sequences per die or group, mean over the instance: what experts are sent; None = `requests`.
        dies: of the instance, which is one expert-parallel group; those with experts only count, too.
        drafts: MTP tokens drafted per sequence.
        microbatch: two overlapping half batches; None = where they are faster. A dense model has none.
        imbalance: rows of the die with the busiest experts over the mean of those with experts, from an expert map and
            the load of experts; None = as the device was fitted.
    """

    requests: float
    context_tokens: float
    mean_requests: float | None = None
    dies: int = 320
    drafts: int = 1
    microbatch: bool | None = None
    imbalance: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """One prefill step of one instance.

    Attributes:
        tokens: computed by the whole instance [tokens].
        attended_tokens: sum over computed tokens of each one's context; n new tokens behind s cached ones
            add n * (s + n / 2).
        dies: of the instance, over which sequence and heads are split.
        imbalance: as in `DecodeLoad`; None = as the device was fitted to the default EPLB.
        microbatch: two overlapping half batches.
        largest: computed tokens of the longest prompt, 0 = unknown: where `Parallelism` gives dies or groups prompts of
            their own, the fullest one has these at least. A device's own layout is taken to fill its dies evenly.
        first: cached tokens before each prompt's first computed one; used only by windows and sparse attention.
    """

    tokens: float
    attended_tokens: float
    dies: int = 32
    imbalance: float | None = None
    microbatch: bool = True
    first: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True, slots=True)
class CostPart:
    """One operator's share of a step.

    Attributes:
        name: e.g. "core attention".
        stream: 0 = attention, 1 = experts, -1 = outside of layers.
        time_s: for all its runs in the step.
        runs: how often it runs: layers times microbatches.
        bound: `compute`, `memory`, `network`, `latency` or `vector`.
        formula: with its numbers, for a person.
    """

    name: str
    stream: int
    time_s: Seconds
    runs: int
    bound: str
    formula: str


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """One step.

    Attributes:
        total_s: from start to end. Less than the sum of the parts where streams overlap.
        layer_s: one layer, all microbatches.
        streams_s: per microbatch and layer, the attention and the expert stream; one after the other without overlap.
        cube_split: share of the cube cores that the attention stream has while they overlap; 1.0 without overlap.
    """

    total_s: Seconds
    layer_s: Seconds
    streams_s: tuple[Seconds, Seconds]
    cube_split: float
    microbatch: bool
    parts: tuple[CostPart, ...]

    @property
    def has_experts(self) -> bool:
        """Whether tokens are sent to experts; else the second stream is an ordinary feed-forward."""
        return any(part.name.startswith(("dispatch", "send to experts")) for part in self.parts)
