"""Cost breakdown of a step with an engine's profile: each operator scaled, and the engine's own time."""

from dataclasses import replace

from hardware.cost.engine_profile import EnginePhase
from hardware.cost.loads import CostPart, DecodeLoad, PredictedStep, PrefillLoad
from hardware.units import Seconds

_OUTSIDE = -1


def decode_step_with(
    phase: EnginePhase, step: PredictedStep, load: DecodeLoad, *, tokens: float, padding_s: float
) -> PredictedStep:
    """One decode step of an engine.

    Args:
        phase: of its profile.
        step: by the device's own calibration, without padding.
        tokens: of one die.
        padding_s: what padding to the next graph adds to `step` [s].
    """
    return _scaled(phase, step, tokens, load.requests, padding_s, phase.padded(load).requests)


def prefill_step_with(phase: EnginePhase | None, step: PredictedStep, load: PrefillLoad) -> PredictedStep:
    """One prefill step of an engine; `phase` of its profile, None = the step is its own already."""
    return step if phase is None else _scaled(phase, step, load.tokens / load.dies)


def _scaled(
    phase: EnginePhase,
    step: PredictedStep,
    tokens: float,
    sequences: float = 0.0,
    padding_s: float = 0.0,
    graph: float = 0.0,
) -> PredictedStep:
    work = phase.work
    parts = [
        part
        if work == 1
        else replace(part, time_s=Seconds(work * part.time_s), formula=f"{work:.4g} x ({part.formula})")
        for part in step.parts
    ]
    if padding_s:
        name = f"padding to graph of {graph:g}"
        parts.append(_part(name, work * padding_s, "compute", f"{graph - sequences:g} empty sequences"))
    fixed_s = phase.step_s + phase.token_s * tokens
    if fixed_s:
        formula = f"{phase.step_s * 1e3:.4g} ms a step + {phase.token_s * 1e6:.4g} us x {tokens:,.6g} tokens"
        parts.append(_part("engine's own time", fixed_s, "latency", formula))
    base_s = step.total_s + padding_s
    if phase.stated:
        parts += _stated_parts(phase, work * base_s + fixed_s, sequences)
    attention, experts = step.streams_s
    return replace(
        step,
        total_s=Seconds(phase.seconds(base_s, tokens, sequences)),
        layer_s=Seconds(work * step.layer_s),
        streams_s=(Seconds(work * attention), Seconds(work * experts)),
        parts=tuple(parts),
    )


def _stated_parts(phase: EnginePhase, device_s: float, sequences: float) -> list[CostPart]:
    """Parts that the profile's owner stated.

    Args:
        device_s: that the device works on the step without these [s].
    """
    sampling_s, eager_s, host_s = (
        phase.sampling_sequence_s * sequences,
        phase.eager_s(sequences),
        phase.host_s(sequences),
    )
    parts = []
    if sampling_s:
        formula = f"{phase.sampling_sequence_s * 1e6:.4g} us x {sequences:g} sequences"
        parts.append(_part("engine's sampling", sampling_s, "vector", formula))
    if eager_s:
        largest = phase.graph_batches[-1]
        parts.append(_part("no graph", eager_s, "latency", f"{sequences:g} sequences, largest graph of {largest}"))
    if host_s:
        formula = (
            f"{phase.host_step_s * 1e3:.4g} ms a step + {phase.host_sequence_s * 1e6:.4g} us x {sequences:g} sequences"
        )
        waits_s = host_s
        if phase.overlapped:
            device_s += sampling_s + eager_s
            waits_s = max(0.0, host_s - device_s)
            formula += f", beside the device's {device_s * 1e3:.4g} ms"
        parts.append(_part("host, scheduler", waits_s, "latency", formula))
    return parts


def _part(name: str, time_s: float, bound: str, formula: str) -> CostPart:
    return CostPart(name, _OUTSIDE, Seconds(time_s), 1, bound, formula)
