"""What a calibration found, as text and as JSON; and how far predictions can be trusted, in one sentence."""

from typing import Any

from hardware.cost.calibrate import GOAL, LEFT_OUT_GOAL, Calibrated, GroupResult, has_rows
from hardware.cost.device_model import DeviceModel

INSIDE = {"batch": (8.0, 128.0), "context": (1_024.0, 8_192.0)}
"""Where decode was published: sequences per NPU, and tokens."""


def decode_trust(device: DeviceModel, batch: float, context: float, drafts: int = 1) -> str:
    """How far a decode prediction can be off.

    Effects: none.
    """
    if device.name != "ascend-910c":
        return _trust_elsewhere(device)
    low, high = INSIDE["batch"]
    short, long = INSIDE["context"]
    published = "the published range (batch 8 to 128, context 1K to 8K, at most 1 draft)"
    if low <= batch <= high and short <= context <= long and drafts <= 1:
        return f"expect within 5 %: inside of {published}"
    return f"expect 10 to 15 %: outside of {published}"


def prefill_trust(device: DeviceModel, tokens_per_die: float, prompt: float) -> str:
    """How far a prefill prediction can be off.

    Effects: none.
    """
    if device.name != "ascend-910c":
        return _trust_elsewhere(device)
    if tokens_per_die >= 4_096 and 1_024 <= prompt <= 8_192:
        return "expect within 5 %: near the published step (8,192 tokens per die, prompts of 1K to 8K)"
    return "expect 10 to 15 %: far from the published step (8,192 tokens per die, prompts of 1K to 8K)"


def _trust_elsewhere(device: DeviceModel) -> str:
    if has_rows(device):
        return "expect 10 to 15 %: fitted to a few published rows (see --calibrate)"
    return "not checked: nothing was published for this model on this device"


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
    return (
        f"{rows}, {parameters} of which the rows decide {group.effective:.1f}: {group.degrees:.1f} degrees of freedom"
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
