"""A step taken apart, as an engine with a profile runs it: each operator scaled, and the engine's own time."""

from dataclasses import replace

from hardware.cost.engine_profile import EnginePhase
from hardware.cost.loads import CostPart, PredictedStep, PrefillLoad
from hardware.units import Seconds

_OUTSIDE = -1


def decode_step_with(phase: EnginePhase | None, step: PredictedStep, tokens: float) -> PredictedStep:
    """One decode step of an engine.

    Args:
        phase: of its profile; None = the step is its own already.
        tokens: of one die.
    Effects: none.
    """
    return step if phase is None else _scaled(phase, step, tokens)


def prefill_step_with(phase: EnginePhase | None, step: PredictedStep, load: PrefillLoad) -> PredictedStep:
    """One prefill step of an engine; `phase` as of `decode_step_with`. Effects: none."""
    return step if phase is None else _scaled(phase, step, load.tokens / load.dies)


def _scaled(phase: EnginePhase, step: PredictedStep, tokens: float) -> PredictedStep:
    work = phase.work
    parts = [
        part
        if work == 1
        else replace(part, time_s=Seconds(work * part.time_s), formula=f"{work:.4g} x ({part.formula})")
        for part in step.parts
    ]
    fixed_s = phase.step_s + phase.token_s * tokens
    if fixed_s:
        formula = f"{phase.step_s * 1e3:.4g} ms a step + {phase.token_s * 1e6:.4g} us x {tokens:,.6g} tokens"
        parts.append(CostPart("engine's own time", _OUTSIDE, Seconds(fixed_s), 1, "latency", formula))
    attention, experts = step.streams_s
    return replace(
        step,
        total_s=Seconds(phase.seconds(step.total_s, tokens)),
        layer_s=Seconds(work * step.layer_s),
        streams_s=(Seconds(work * attention), Seconds(work * experts)),
        parts=tuple(parts),
    )
