"""Report of a quantisation and of how good it is, as JSON and as a page of Markdown."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from loadgen.report import numbers
from loadgen.report.table import Table, markdown_table
from serving.tools.quantize.result import QuantizationReport
from serving.tools.quantize.settings import STEP_HELP
from serving.tools.quantize.tables import accuracy_table, class_table, expert_table

RANDOM_NOTE = "No text was given: calibrated on random tokens. Give text of the model's own kind for a real model."


def as_json(report: QuantizationReport) -> str:
    """The complete report as JSON."""
    return json.dumps(asdict(report), indent=2) + "\n"


def as_markdown(report: QuantizationReport) -> str:
    """The page."""
    parts = [
        f"# INT8 quantisation of {report.model}",
        _facts(report),
        "## Accuracy on held-out text",
        "Each row is a whole run of its own. Perplexity is divided by the original's; KL is the divergence from "
        "the original's next-token distribution, its mean and, not ruled by the few tokens that were routed to other "
        "experts, its median; top-1 is how often both find the same token most likely; error is "
        "the mean relative error of the INT8 products' outputs, on inputs from the quantised layers before them.",
        _markdown(accuracy_table(report)),
        "## Error of each operator class",
        "Relative error of the products' outputs (root mean square), held-out text.",
        _markdown(class_table(report.trials)),
        "## Steps",
        "\n".join(f"- `{name}`: {text}" for name, text in STEP_HELP.items()),
        *_experts(report.expert_rows),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(report: QuantizationReport) -> str:
    before, after = numbers.size(report.bytes_before), numbers.size(report.bytes_after)
    part = numbers.share(report.bytes_after / report.bytes_before)
    lines = [
        f"- steps: {', '.join(report.steps) or 'none (plain rounding)'}",
        f"- kept as they were on request: {', '.join(report.kept) or 'nothing'}",
        f"- text: {report.text}; {report.calibration_tokens:,} tokens to calibrate and {report.held_out_tokens:,} held "
        f"out, in windows of {report.window_tokens}, seed {report.seed}",
        f"- weights: {before} before, {after} after ({part})",
        f"- time: {numbers.duration(report.elapsed_s)}, all trials together",
    ]
    return "\n".join(lines + ([f"- {RANDOM_NOTE}"] if report.random_text else []))


def _experts(rows: Mapping[int, Mapping[int, int]]) -> list[str]:
    if not rows:
        return []
    text = (
        "Calibration rows that each layer's experts saw. An expert that saw fewer than its matrices have input "
        "channels was given rows of the layer's other tokens as well."
    )
    return ["## Tokens of each expert", text, _markdown(expert_table(rows))]


def _markdown(table: Table) -> str:
    return "\n".join(markdown_table(table))
