"""`cloudmatrix cost`: output of steps on separate dies, and of mixed steps."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from hardware.cost import CostModel, DecodeLoad, PrefillLoad
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.disaggregated import ApartDecodeStep
from hardware.cost.explain import stages_text
from hardware.cost.memory_plan import HbmPlan
from hardware.cost.mixed_step import MixedStep
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.cost.trust import decode_trust, engine_text_of, mixed_trust, prefill_trust
from hardware.units import format_bytes
from serving.errors import ConfigError
from serving.terminal import table_console

# Output of `cloudmatrix cost` if attention and experts have separate dies.


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


# Output of `cloudmatrix cost --aggregated`: a mixed step of prompts and decodes, against two separate steps.


def mixed_answer(model: CostModel, arguments: argparse.Namespace, dies: int, prompts: PrefillLoad) -> int:
    """Price one step.

    Args:
        arguments: of the command line, checked.
    Returns: exit code.
    Raises: SpecError for a step that cannot be priced, or does not fit.
    Effects: prints.
    """
    batch, context, drafts = arguments.batch, arguments.context, arguments.drafts
    decodes = model.even_load(batch, context, dies=dies, drafts=drafts, microbatch=arguments.microbatch)
    mixed_s = MixedStep(model).seconds(decodes, prompts)
    decode_s, prefill_s = model.decode_step_s(decodes), model.prefill_step_s(prompts)
    per_step = mtp_tokens_per_step(drafts, arguments.acceptance)
    room = model.hbm_plan("aggregated", dies).instance_kv_tokens
    fits = int(room / (dies / model.device.die.per_npu) / context)
    trust = mixed_trust(
        decode_trust(model, batch, context, drafts, dies=dies),
        prefill_trust(model, prompts.tokens / dies, arguments.prompt, dies=dies, reuse=arguments.reuse),
    )
    numbers = {
        "step_s": mixed_s,
        "tpot_s": mixed_s / per_step,
        "decode_step_s": decode_s,
        "decode_tpot_s": decode_s / per_step,
        "prefill_step_s": prefill_s,
        "saved_s": decode_s + prefill_s - mixed_s,
        "batch_that_fits": fits,
        "device": model.device.name,
        "engine": engine_text_of(model),
        "formats": model.shape.formats.text,
        "expected_error": trust.error,
        "trust": trust.text,
    }
    if arguments.json:
        print(json.dumps(numbers, indent=2))
        return 0
    console = table_console()
    console.print(
        f"{model.shape.name} on {model.device.title}, one step of an aggregated instance of {dies} dies: "
        f"{prompts.tokens:,.10g} new prompt tokens beside batch {batch:,.10g} per NPU, {context:,.10g} tokens each, "
        f"{drafts} draft{'s' * (drafts != 1)} a step\n\n"
        f"[bold]step {mixed_s * 1e3:,.1f} ms, TPOT {mixed_s / per_step * 1e3:,.1f} ms meanwhile[/bold] "
        f"({trust.text})\n"
        f"engine: {engine_text_of(model)}; {model.shape.formats.text}\n"
        f"apart: decode {decode_s * 1e3:,.1f} ms (TPOT {decode_s / per_step * 1e3:,.1f} ms) + prefill "
        f"{prefill_s * 1e3:,.1f} ms = {(decode_s + prefill_s) * 1e3:,.1f} ms; together it saves "
        f"{(decode_s + prefill_s - mixed_s) * 1e3:,.1f} ms\n"
        f"the prompts make the step {(mixed_s - decode_s) * 1e3:,.1f} ms longer; "
        f"KV room for {fits:,} such sequences per NPU"
    )
    if batch > fits:
        console.print("[yellow]this batch does not fit into the memory: only its time is predicted[/yellow]")
    return 0
