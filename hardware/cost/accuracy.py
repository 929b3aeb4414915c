"""Result of a calibration as text and as JSON."""

from typing import Any

from hardware.cost.calibrate import GOAL, LEFT_OUT_GOAL, Calibrated, GroupResult
from hardware.cost.published import RowKind


def percent(value: float | None) -> str:
    """A relative error for a person: "+1.2 %"; empty for none."""
    text = "" if value is None else f"{value * 100:+.1f} %"
    return "+0.0 %" if text == "-0.0 %" else text


def calibration_markdown(found: Calibrated) -> str:
    """The error table, for a README."""
    lines = [
        "| | published | ours | error | left out | kind | source |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for group in found.groups:
        lines.append(f"| **{group.title}** ({counted(group)}) | | | | | | |")
        for result in group.rows:
            row = result.row
            lines.append(
                f"| {row.name} | {row.published:,.4g} {row.unit} | {result.predicted:,.4g} | {percent(result.error)} "
                f"| {percent(result.left_out)} | {row.kind} | {row.source} |"
            )
    missed = misses(found)
    if missed:
        lines += ["", f"Missed (goal: {100 * GOAL:g} %, left out {100 * LEFT_OUT_GOAL:g} %), and why:", ""]
        lines += [f"- {text}" for text in missed]
    return "\n".join(lines)


def counted(group: GroupResult) -> str:
    """Rows, parameters and degrees of freedom of a group, for a person."""
    if not group.frees:
        told = f"{group.effective:g} parameters" if group.effective else "no parameter"
        return f"{len(group.rows)} rows, {told}"
    fitted = sum(result.row.kind is RowKind.FITTED for result in group.rows)
    rows, parameters = (f"{n} {word}{'s' * (n != 1)}" for n, word in ((fitted, "row"), (len(group.frees), "parameter")))
    chosen = f" and {group.chosen} chosen by hand" if group.chosen else ""
    return (
        f"{rows}, {parameters} of which the rows decide {group.effective:.1f}{chosen}: "
        f"{group.degrees:.1f} degrees of freedom"
    )


def misses(found: Calibrated) -> list[str]:
    """Rows that do not meet the goals, each with the reason; rows of the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for group in found.groups:
        for result in group.rows:
            if not result.met:
                errors = percent(result.error) + (f", left out {percent(result.left_out)}" if result.left_out else "")
                by_reason.setdefault(result.note, []).append(f"{result.row.name} ({errors})")
    return [f"{', '.join(names)}: {reason}." for reason, names in by_reason.items()]


def calibration_json(found: Calibrated) -> dict[str, Any]:
    """All of it as plain values."""
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
                "kind": str(result.row.kind),
                "met": result.met,
                "note": result.note,
                "source": result.row.source,
            }
            for result in group.rows
        ],
    }
