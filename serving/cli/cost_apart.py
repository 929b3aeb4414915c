"""Output of `cloudmatrix cost` if attention and experts have separate dies."""

import argparse
from dataclasses import asdict
from typing import Any

from hardware.cost import CostModel, DecodeLoad
from hardware.cost.disaggregated import ApartDecodeStep
from hardware.cost.explain_apart import stages_text
from hardware.cost.memory_plan import HbmPlan
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.units import format_bytes
from serving.errors import ConfigError


def decode_division(arguments: argparse.Namespace) -> Parallelism:
    """Division of a decode instance's work, from the flags.

    Raises: ConfigError for domains without expert dies; SpecError for impossible degrees.
    """
    if arguments.domains is not None and not arguments.expert_dies:
        raise ConfigError("--domains share the dies of --expert-dies; without it they have no effect")
    domains = WHOLE.domains if arguments.domains is None else arguments.domains
    return Parallelism(
        arguments.attention_tp,
        arguments.head_tp,
        arguments.prefill_attention,
        arguments.expert_dies,
        domains,
        arguments.expert_tp,
        arguments.redundant,
    )


def dies_text(model: CostModel, dies: int) -> str:
    """Dies of a decode instance, as text."""
    division = model.decode.parallelism
    if not division.expert_dies:
        return f"{dies} dies"
    attention = division.groups(dies)
    return f"{attention} dies of attention in {division.domains} domains + {division.expert_dies} of experts"


def stages_values(model: CostModel, load: DecodeLoad, plan: HbmPlan) -> dict[str, Any]:
    """Stages, bottleneck and contents of an expert die, as plain values; empty if all dies do both."""
    step, die = model.decode, plan.expert_die
    if not isinstance(step, ApartDecodeStep) or die is None:
        return {}
    return {"stages": asdict(step.iteration(load)), "expert_die": asdict(die)}


def pace_text(model: CostModel, load: DecodeLoad, plan: HbmPlan) -> str | None:
    """Pace and memory of each kind of die, as text; None if all dies do both."""
    step, die = model.decode, plan.expert_die
    if not isinstance(step, ApartDecodeStep) or die is None:
        return None
    stages = step.iteration(load)
    parts = "two half batches" if stages.halves > 1 else "no half batches"
    return (
        f"{parts}; {stages.bound} sets the pace of {stages.pace_s * 1e6:,.0f} us: attention and sending "
        f"{stages.attention_s * 1e6:,.0f} us; experts' turn {stages.turn_s * 1e6:,.0f} us, {step.parallelism.domains} x"
        f" the longest of {stages_text(stages)}\n"
        f"{load.requests:,.4g} sequences per attention die, {format_bytes(plan.weights)} of weights; a die of experts "
        f"has {format_bytes(die.weights)} of them and {format_bytes(die.free)} free"
    )
