"""Output of `cloudmatrix cost --aggregated`: a mixed step of prompts and decodes, against two separate steps."""

import argparse
import json

from hardware.cost import CostModel, PrefillLoad
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.mixed_step import MixedStep
from hardware.cost.trust import engine_text_of
from serving.terminal import table_console

TRUST = "no such step has been published: derived from one of each kind"


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
        "expected_error": None,
        "trust": TRUST,
    }
    if arguments.json:
        print(json.dumps(numbers, indent=2))
        return 0
    console = table_console()
    console.print(
        f"{model.shape.name} on {model.device.title}, one step of an aggregated instance of {dies} dies: "
        f"{prompts.tokens:,.10g} new prompt tokens beside batch {batch:,.10g} per NPU, {context:,.10g} tokens each, "
        f"{drafts} draft{'s' * (drafts != 1)} a step\n\n"
        f"[bold]step {mixed_s * 1e3:,.1f} ms, TPOT {mixed_s / per_step * 1e3:,.1f} ms meanwhile[/bold] ({TRUST})\n"
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
