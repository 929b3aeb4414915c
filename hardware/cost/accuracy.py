"""Result of a calibration as text and as JSON, with one sentence on how far predictions can be trusted."""

from dataclasses import replace
from typing import Any

from hardware.cost.attention import GroupedAttentionSizes
from hardware.cost.calibrate import GOAL, LEFT_OUT_GOAL, Calibrated, GroupResult, has_rows
from hardware.cost.device_file import device_names, load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape
from hardware.cost.published import published_halves

FITTED_BATCH = (8.0, 128.0)
FITTED_HALVED_BATCH = (24.0, 128.0)
"""With two half batches."""
FITTED_CONTEXT = (1_024.0, 4_352.0)
"""Of the published sequences, from their prompts' length to their end."""
FITTED_DECODE_DIES = 320
FITTED_DRAFTS = 1
"""At most."""
FITTED_CHUNK = (4_096.0, 8_192.0)
"""New tokens per die: the published steps have 8,192, of which none or half are cached."""
FITTED_PROMPT = (1_024.0, 8_192.0)
FITTED_REUSE = 0.9
"""At most, of a step of 8,192 tokens per die."""
FITTED_PREFILL_DIES = 32
_ROUNDING = 1e-9
ELSEWHERE = "expect 10 to 15 %, more the further away"


def model_trust(shape: ModelShape) -> str:
    """How far any time of a model can be off, as every report of it says; empty for the one that was fitted.

    Effects: none.
    """
    if replace(shape, name=DEEPSEEK_R1.name) == DEEPSEEK_R1:
        return ""
    if isinstance(shape.attention, GroupedAttentionSizes):
        return "not checked: no published row of grouped attention was fitted"
    return "not checked: all published rows are of DeepSeek-R1"


def decode_trust(
    device: DeviceModel,
    batch: float,
    context: float,
    drafts: int = 1,
    *,
    dies: int = FITTED_DECODE_DIES,
    microbatch: bool | None = None,
) -> str:
    """How far the time of a decode step can be off: 5 % are promised only where all of it was fitted.

    Args:
        batch: sequences per NPU; context: tokens of each.
        microbatch: whether the step runs as two half batches; None = it is not known.
    Effects: reads the file of the device.
    """
    if elsewhere := _elsewhere(device):
        return elsewhere
    outside = [
        *_beyond("batch", batch, *FITTED_BATCH),
        *_beyond("context", context, *FITTED_CONTEXT),
        *_beyond("dies", dies, FITTED_DECODE_DIES, FITTED_DECODE_DIES),
        *_beyond("drafts", drafts, 0, FITTED_DRAFTS),
    ]
    if microbatch:
        outside += _beyond("half batches at batch", batch, *FITTED_HALVED_BATCH)
    fitted = (
        f"batch {_range(*FITTED_BATCH)} per NPU, context {_range(*FITTED_CONTEXT)}, {FITTED_DECODE_DIES} dies, "
        f"at most {FITTED_DRAFTS} draft"
    )
    if microbatch is False and published_halves(batch):
        fitted += "; the published engine has half batches here, which --microbatch predicts"
    return _trust(outside, fitted)


def prefill_trust(
    device: DeviceModel,
    tokens_per_die: float,
    prompt: float,
    *,
    dies: int = FITTED_PREFILL_DIES,
    reuse: float = 0.0,
) -> str:
    """How far the time of a prefill step can be off: 5 % are promised only where all of it was fitted.

    Args:
        tokens_per_die: to be computed, cached ones left out.
        reuse: share of each prompt that is cached.
    Effects: reads the file of the device.
    """
    if elsewhere := _elsewhere(device):
        return elsewhere
    low, full = FITTED_CHUNK
    least, most = min(low, full * (1 - reuse)), full * (1 - reuse)  # a full step is smaller for what is cached of it
    outside = [
        *_beyond("new tokens per die", tokens_per_die, least, most),
        *_beyond("prompts", prompt, *FITTED_PROMPT),
        *_beyond("dies", dies, FITTED_PREFILL_DIES, FITTED_PREFILL_DIES),
        *_beyond("cached share", reuse, 0, FITTED_REUSE),
    ]
    fitted = (
        f"{_range(low, full)} tokens per die, or {full:,.0f} with up to {FITTED_REUSE:.0%} cached; "
        f"prompts of {_range(*FITTED_PROMPT)}, {FITTED_PREFILL_DIES} dies"
    )
    return _trust(outside, fitted)


def _elsewhere(device: DeviceModel) -> str:
    """The caution for all devices but the one that the promise is for; empty for that one."""
    if device.name not in device_names() or load_device(device.name) != device or not has_rows(device):
        return "not checked: nothing was published for this model on this device"
    if device.name == "ascend-910c":
        return ""
    return f"{ELSEWHERE}, fitted to a few published rows: see --calibrate"


def _trust(outside: list[str], fitted: str) -> str:
    if outside:
        return f"{ELSEWHERE}, outside of what was fitted: {'; '.join(outside)}"
    return f"expect within 5 %, inside of what was fitted: {fitted}"


def _beyond(what: str, value: float, low: float, high: float) -> list[str]:
    """A value outside of its range, in words; nothing if it is inside."""
    if low * (1 - _ROUNDING) <= value <= high * (1 + _ROUNDING):
        return []
    return [f"{what} {value:,.10g}, not {_range(low, high)}"]


def _range(low: float, high: float) -> str:
    return f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"


def percent(value: float | None) -> str:
    """A relative error for a person: "+1.2 %"; empty for none. Effects: none."""
    text = "" if value is None else f"{value * 100:+.1f} %"
    return "+0.0 %" if text == "-0.0 %" else text


def calibration_markdown(found: Calibrated) -> str:
    """The error table, for a README.

    Effects: none.
    """
    lines = [
        "| | published | predicted | error | left out | source |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for group in found.groups:
        lines.append(f"| **{group.title}** ({counted(group)}) | | | | | |")
        for result in group.rows:
            row = result.row
            lines.append(
                f"| {row.name} | {row.published:,.4g} {row.unit} | {result.predicted:,.4g} | {percent(result.error)} "
                f"| {percent(result.left_out)} | {row.source} |"
            )
    missed = misses(found)
    if missed:
        lines += ["", f"Missed (goal: {100 * GOAL:g} %, left out {100 * LEFT_OUT_GOAL:g} %), and why:", ""]
        lines += [f"- {text}" for text in missed]
    return "\n".join(lines)


def counted(group: GroupResult) -> str:
    """Rows, parameters and degrees of freedom of a group, for a person. Effects: none."""
    if not group.frees:
        return f"{len(group.rows)} rows, nothing fitted"
    fitted = sum(result.row.fitted for result in group.rows)
    rows, parameters = (f"{n} {word}{'s' * (n != 1)}" for n, word in ((fitted, "row"), (len(group.frees), "parameter")))
    chosen = f" and {group.chosen} chosen by hand" if group.chosen else ""
    return (
        f"{rows}, {parameters} of which the rows decide {group.effective:.1f}{chosen}: "
        f"{group.degrees:.1f} degrees of freedom"
    )


def misses(found: Calibrated) -> list[str]:
    """Rows that do not meet the goals, each with the reason; rows of the same reason together.

    Effects: none.
    """
    by_reason: dict[str, list[str]] = {}
    for group in found.groups:
        for result in group.rows:
            if not result.met:
                errors = percent(result.error) + (f", left out {percent(result.left_out)}" if result.left_out else "")
                by_reason.setdefault(result.note, []).append(f"{result.row.name} ({errors})")
    return [f"{', '.join(names)}: {reason}." for reason, names in by_reason.items()]


def calibration_json(found: Calibrated) -> dict[str, Any]:
    """All of it as plain values.

    Effects: none.
    """
    return {
        "device": found.device.name,
        "goal": GOAL,
        "left_out_goal": LEFT_OUT_GOAL,
        "groups": [_group_json(group) for group in found.groups],
    }


def _group_json(group: GroupResult) -> dict[str, Any]:
    return {
        "title": group.title,
        "parameters": [
            {"name": free.name, "value": group.values[free.name], "prior": free.prior, "reason": free.reason}
            for free in group.frees
        ],
        "effective_parameters": group.effective,
        "chosen_parameters": group.chosen,
        "degrees_of_freedom": group.degrees,
        "rows": [
            {
                "name": result.row.name,
                "published": result.row.published,
                "predicted": result.predicted,
                "unit": result.row.unit,
                "error": result.error,
                "left_out_error": result.left_out,
                "fitted": result.row.fitted,
                "met": result.met,
                "note": result.note,
                "source": result.row.source,
            }
            for result in group.rows
        ],
    }
