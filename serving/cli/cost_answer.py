"""Output of `cloudmatrix cost`: tables for people, JSON for programs."""

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from hardware.cost import (
    DEEPSEEK_R1,
    CostModel,
    DecodeLoad,
    ModelShape,
    PredictedStep,
    PrefillLoad,
    load_device,
    load_shape,
)
from hardware.cost.accuracy import (
    calibration_json,
    calibration_markdown,
    counted,
    misses,
    percent,
)
from hardware.cost.calibrate import Calibrated, calibrate, has_rows
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.device_file import device_names
from hardware.cost.device_model import DeviceModel
from hardware.cost.drafter import with_drafter
from hardware.cost.engine_profile import engine_names, load_engine
from hardware.cost.model_shape import served_shape
from hardware.cost.trust import Trust, decode_trust, engine_text_of, model_trust, prefill_trust
from hardware.cost.weight_format import formats_named
from hardware.units import format_bytes
from serving.cli.cost_fit import fit, judge_file, plain_table
from serving.cli.cost_flags import check_flags, check_no_flags
from serving.cli.cost_steps import decode_division, dies_text, mixed_answer, pace_text, stages_values
from serving.cli.options import folder_of
from serving.errors import ConfigError
from serving.terminal import table_console

_STREAMS = {0: "attention", 1: "experts", -1: "outside"}
_DENSE_STREAMS = _STREAMS | {1: "feed-forward"}
_PREFILL_STREAMS = {0: "main", 1: "hidden", -1: "outside"}
_PREFILL_DIES = 32
_TOO_LONG = "this does not fit into the memory, which holds {:,} tokens: only its time is predicted"
_SPLIT_DIES, _OTHER_DIES = 320, 144
"""Published decode groups: 160 Ascend 910C NPUs; 144 GPUs."""


def answer(arguments: argparse.Namespace) -> int:
    """Print the requested prediction.

    Args:
        arguments: of the command line, as declared in `serving.cli.cost`.
    Returns: exit code.
    Raises: ConfigError for impossible numbers; SpecError for unknown devices, models and layouts.
    Effects: prints.
    """
    if arguments.list:
        return _list(as_json=arguments.json)
    if arguments.markdown and not arguments.calibrate:
        raise ConfigError("--markdown prints the error table: add --calibrate")
    if arguments.out and not arguments.fit:
        raise ConfigError("--out is where --fit writes the profile: add --fit FILE")
    engine = load_engine(arguments.engine) if arguments.engine else None
    device = load_device(arguments.device)
    division = decode_division(arguments)
    prefill = replace(division, expert_dies=0)
    model = CostModel(device, _shape(arguments, device), engine, decode=division, prefill=prefill)
    if arguments.fit:
        check_no_flags(arguments, "--fit")
        return fit(model, arguments)
    if arguments.judge:
        check_no_flags(arguments, "--judge")
        return judge_file(model, arguments)
    if arguments.calibrate:
        return _calibrate(model, arguments)
    _check(arguments)
    _check_priced(arguments, model.shape)
    if arguments.aggregated:
        dies = int(arguments.dies or _PREFILL_DIES)
        return mixed_answer(model, arguments, dies, _prompts(arguments, dies))
    if arguments.prefill is not None:
        return _prefill(model, arguments)
    if arguments.tpot is not None:
        return _largest(model, arguments)
    return _decode(model, arguments)


def _shape(arguments: argparse.Namespace, device: DeviceModel) -> ModelShape:
    """The requested model, in the requested formats or those of its config.json."""
    name, weights, kv, drafter = arguments.model, arguments.weights, arguments.kv, arguments.draft_model
    if name == DEEPSEEK_R1.name:
        formats = formats_named(weights or "w8a8", experts=True, kv=kv or "bf16")
        return with_drafter(served_shape(replace(DEEPSEEK_R1, formats=formats), device, asked=True), drafter)
    folder = folder_of(name, "config")
    shape = served_shape(load_shape(folder, weights=weights, kv=kv), device, asked=bool(weights))
    return with_drafter(shape if folder == Path(name) else replace(shape, name=name), drafter)


def _check(arguments: argparse.Namespace) -> None:
    """Reject impossible numbers, and flags without effect.

    Raises: ConfigError.
    """
    for name in ("batch", "context", "prompt", "prefill", "dies"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name} is {value:g}; it must be above zero")
    if not 0 <= arguments.reuse < 1:
        raise ConfigError(f"--reuse is {arguments.reuse:g}; it is a share: 0 up to, but not including, 1")
    mtp_tokens_per_step(arguments.drafts or 0, arguments.acceptance)
    check_flags(arguments)


def _check_priced(arguments: argparse.Namespace, shape: ModelShape) -> None:
    """Check that the cost model supports the request.

    Raises: ConfigError, SpecError if not.
    Effects: sets the default of one draft per step for a model with draft layers.
    """
    if arguments.drafts is None:
        arguments.drafts = 3 if shape.drafter is not None else min(1, shape.mtp_layers)
    shape.check_drafts(arguments.drafts)
    if arguments.microbatch and not shape.experts:
        raise ConfigError(f"--microbatch hides dispatch and combine, and {shape.name} is dense: it has neither")


def _decode_dies(model: CostModel, arguments: argparse.Namespace) -> int:
    default = _SPLIT_DIES if model.device.layout.decode_overlap == "split-cores" else _OTHER_DIES
    return int(arguments.dies or default)


def _list(*, as_json: bool) -> int:
    devices = [load_device(name) for name in device_names()]
    engines = [load_engine(name) for name in engine_names()]
    if as_json:
        found: list[dict[str, Any]] = [
            {"kind": "device", "name": d.name, "title": d.title, "checked": has_rows(d)} for d in devices
        ]
        found += [{"kind": "engine", "name": e.name, "title": e.title, "checked": True} for e in engines]
        print(json.dumps(found, indent=2))
        return 0
    table = plain_table("device", "", "8-bit peak", "BF16 peak", "HBM", "errors")
    for device in devices:
        die = device.die
        table.add_row(
            device.name,
            device.title,
            f"{die.int8_flops_per_s / 1e12:,.0f} T/s",
            f"{die.bf16_flops_per_s / 1e12:,.0f} T/s",
            f"{format_bytes(int(die.hbm_bytes))}, {die.hbm_bytes_per_s / 1e12:.2f} TB/s",
            "known" if has_rows(device) else "not checked",
        )
    table_console().print(table)
    print()
    table = plain_table("engine", "", "on", ">decode", ">prefill")
    for engine in engines:
        factors = [f"x {phase.work:.3g}" if phase else "not known" for phase in (engine.decode, engine.prefill)]
        table.add_row(engine.name, engine.title, engine.device, *factors)
    table_console().print(table)
    return 0


# --- steps --------------------------------------------------------------------------------------------------------
def _decode(model: CostModel, arguments: argparse.Namespace) -> int:
    dies = _decode_dies(model, arguments)
    load = _load(model, arguments, arguments.batch)
    cost = model.decode_step(load)
    tpot_s = cost.total_s / mtp_tokens_per_step(arguments.drafts, arguments.acceptance)
    trust = _decode_trust(model, arguments, arguments.batch)
    plan = model.hbm_plan("decode", dies)
    fits = model.batch_that_fits(arguments.context, dies=dies)
    tp = model.decode.parallelism.attention_tp
    holder = "attention die" if plan.expert_die else "die" if tp == 1 else f"group of {tp} dies"
    numbers = {
        "tpot_s": tpot_s,
        "tokens_per_s_per_npu": arguments.batch / tpot_s,
        "kv_tokens_per_die" if tp == 1 else "kv_tokens_per_group": plan.kv_tokens,
        "batch_that_fits": fits,
        **stages_values(model, load, plan),
        **_trusted(model, trust),
    }
    if arguments.json:
        return _print_json(cost, numbers)
    console = table_console()
    drafts = f"{arguments.drafts} draft{'s' * (arguments.drafts != 1)} a step"
    console.print(
        f"{model.shape.name} on {model.device.title}, decode on {dies_text(model, dies)}: "
        f"batch {arguments.batch:,.10g} per NPU, {arguments.context:,.10g} tokens each, {drafts}\n\n"
        f"[bold]TPOT {tpot_s * 1e3:,.1f} ms, {arguments.batch / tpot_s:,.0f} tokens/s per NPU[/bold] ({trust.text})\n"
        f"engine: {engine_text_of(model)}; {model.shape.formats.text}\n"
        f"step {cost.total_s * 1e3:,.1f} ms, layer {cost.layer_s * 1e6:,.0f} us; "
        f"KV room {plan.kv_tokens:,} tokens per {holder}: {fits:,} such sequences per NPU"
    )
    if arguments.batch > fits:
        console.print("[yellow]this batch does not fit into the memory: only its time is predicted[/yellow]")
    console.print(pace_text(model, load, plan) or _streams_text(cost, model))
    if arguments.explain:
        console.print(_parts_table(cost, _STREAMS if cost.has_experts else _DENSE_STREAMS))
    return 0


def _load(model: CostModel, arguments: argparse.Namespace, batch: float) -> DecodeLoad:
    return model.even_load(
        batch,
        arguments.context,
        dies=_decode_dies(model, arguments),
        drafts=arguments.drafts,
        microbatch=arguments.microbatch,
    )


def _decode_trust(model: CostModel, arguments: argparse.Namespace, batch: float) -> Trust:
    dies, microbatch = _decode_dies(model, arguments), model.decode.uses_microbatch(_load(model, arguments, batch))
    return decode_trust(model, batch, arguments.context, arguments.drafts, dies=dies, microbatch=microbatch)


def _trusted(model: CostModel, trust: Trust | None) -> dict[str, Any]:
    """Device and engine for which a time holds, and its accuracy, as plain values."""
    return {
        "device": model.device.name,
        "engine": engine_text_of(model),
        "formats": model.shape.formats.text,
        "expected_error": None if trust is None else trust.error,
        "trust": None if trust is None else trust.text,
    }


def _streams_text(cost: PredictedStep, model: CostModel) -> str:
    attention, experts = (f"{stream * 1e6:,.0f} us" for stream in cost.streams_s)
    if not cost.microbatch:
        second = "experts" if cost.has_experts else "feed-forward"
        return f"no half batches: attention {attention}, then {second} {experts}"
    if model.device.layout.decode_overlap != "split-cores":
        return f"two half batches: attention {attention} and experts {experts} each; exchange behind the other half"
    cores = round(cost.cube_split * model.device.die.cores)
    rest = round(model.device.die.cores) - cores
    return f"two half batches side by side: attention {attention} on {cores} cores, experts {experts} on {rest}"


def _prompts(arguments: argparse.Namespace, dies: int) -> PrefillLoad:
    new = arguments.prefill * (1 - arguments.reuse)
    seen = arguments.prompt * (arguments.reuse + (1 - arguments.reuse) / 2)
    microbatch = arguments.microbatch is not False
    first = arguments.prompt * arguments.reuse
    largest = min(new, arguments.prompt - first)
    return PrefillLoad(new, new * seen, dies, 1.0 if arguments.perfect_balance else None, microbatch, first, largest)


def _prefill(model: CostModel, arguments: argparse.Namespace) -> int:
    dies = int(arguments.dies or _PREFILL_DIES)
    load = _prompts(arguments, dies)
    new = load.tokens
    cost = model.prefill_step(load)
    npus = dies / model.device.die.per_npu
    cached = model.kv_bytes(arguments.prefill * arguments.reuse)
    load_s = model.pool_load_s(cached, max(1.0, npus)) if cached else 0.0
    rate_per_npu = arguments.prefill / npus / (cost.total_s + load_s)
    trust = prefill_trust(model, new / dies, arguments.prompt, dies=dies, reuse=arguments.reuse)
    room = model.hbm_plan("prefill", dies).instance_kv_tokens
    numbers = {
        "tokens_per_s_per_npu": rate_per_npu,
        "kv_tokens_per_instance": room,
        "pool_load_s": load_s,
        **_trusted(model, trust),
    }
    if arguments.json:
        return _print_json(cost, numbers)
    console = table_console()
    loading = f"; before it, {load_s * 1e3:,.1f} ms of loading {format_bytes(int(cached))} of cached blocks"
    halves = "two half batches" if cost.microbatch else "no half batches"
    console.print(
        f"{model.shape.name} on {model.device.title}, prefill on {dies} dies: "
        f"{arguments.prefill:,.0f} tokens in prompts of {arguments.prompt:,.10g}, "
        f"{100 * arguments.reuse:g} % cached\n\n"
        f"[bold]step {cost.total_s * 1e3:,.1f} ms, {rate_per_npu:,.0f} prompt tokens/s per NPU[/bold] ({trust.text})"
        f"\nengine: {engine_text_of(model)}; {model.shape.formats.text}"
        f"\n{halves}; layer {cost.layer_s * 1e3:.2f} ms{loading if cached else ''}"
    )
    if arguments.prefill > room:
        console.print(f"[yellow]{_TOO_LONG.format(room)}[/yellow]")
    if arguments.explain:
        console.print(_parts_table(cost, _PREFILL_STREAMS))
    return 0


def _largest(model: CostModel, arguments: argparse.Namespace) -> int:
    dies = _decode_dies(model, arguments)
    options = {
        "dies": dies,
        "drafts": arguments.drafts,
        "acceptance": arguments.acceptance,
        "microbatch": arguments.microbatch,
    }
    batch = model.max_batch(arguments.tpot, arguments.context, **options)
    tpot_s = float(model.tpot_s(batch, arguments.context, **options)) if batch else None
    room = model.batch_that_fits(arguments.context, dies=dies)
    trust = _decode_trust(model, arguments, batch)
    if arguments.json:
        numbers = {"batch_per_npu": batch, "tpot_s": tpot_s, "batch_that_fits": room}
        numbers |= _trusted(model, trust if batch else None)
        print(json.dumps(numbers, indent=2))
        return 0
    if tpot_s is None:
        print(f"no batch keeps {arguments.tpot * 1e3:,.10g} ms with {arguments.context:,.10g} tokens of context")
        return 0
    limit = "memory" if batch >= room else "latency"
    table_console().print(
        f"[bold]{batch} sequences per NPU[/bold] keep {arguments.tpot * 1e3:,.10g} ms with {arguments.context:,.10g} "
        f"tokens of context: TPOT {tpot_s * 1e3:.1f} ms, {batch / tpot_s:,.0f} tokens/s per NPU "
        f"(the time: {trust.text})\n"
        f"engine: {engine_text_of(model)}\n"
        f"limited by {limit}; memory holds {room:,}"
    )
    if arguments.explain:
        print()
        arguments.batch = batch
        return _decode(model, arguments)
    return 0


def _parts_table(cost: PredictedStep, streams: dict[int, str]) -> Table:
    table = plain_table("operator", "stream", ">runs", ">us each", ">ms in all", "bound", "formula")
    for part in cost.parts:
        each = part.time_s / part.runs * 1e6
        table.add_row(
            part.name,
            streams[part.stream],
            str(part.runs),
            f"{each:,.1f}",
            f"{part.time_s * 1e3:,.2f}",
            part.bound,
            part.formula,
        )
    return table


def _print_json(cost: PredictedStep, numbers: dict[str, Any]) -> int:
    print(json.dumps({**numbers, "step": asdict(cost)}, indent=2))
    return 0


# --- calibration --------------------------------------------------------------------------------------------------
def _calibrate(model: CostModel, arguments: argparse.Namespace) -> int:
    if model.engine is not None:
        raise ConfigError("--calibrate refits the device file, which has its own engine: it accepts no --engine")
    if model_trust(model.shape):
        raise ConfigError("--calibrate refits to published rows, which are of DeepSeek-R1: it accepts no other --model")
    found = calibrate(model.device, model.shape)
    if arguments.json:
        print(json.dumps(calibration_json(found), indent=2))
    elif arguments.markdown:
        print(calibration_markdown(found))
    else:
        _print_calibration(found)
    return 0


def _print_calibration(found: Calibrated) -> None:
    console = table_console()
    if not has_rows(found.device):
        console.print(f"[bold]{found.device.title}: nothing was published for it, so steps are not checked.[/bold]")
    for group in found.groups:
        console.print(f"\n[bold]{group.title}[/bold]: {counted(group)}")
        for free in group.frees:
            kept = found.device.constants[f"calibration.{free.name}"].value
            console.print(f"  {free.name} = {group.values[free.name]:.4g} (device file: {kept:.4g}); {free.reason}")
        table = plain_table("", ">published", ">predicted", ">error", ">left out", "source")
        for result in group.rows:
            row, style = result.row, "" if result.met else "yellow"
            table.add_row(
                row.name,
                f"{row.published:,.4g} {row.unit}",
                f"{result.predicted:,.4g}",
                percent(result.error),
                percent(result.left_out),
                row.source,
                style=style,
            )
        console.print(table)
    for text in misses(found):
        console.print(f"missed: {text}", style="yellow")
