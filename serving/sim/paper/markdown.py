"""report.md, and the short error table of serving/sim/README.md."""

from collections.abc import Sequence

from serving.sim.paper import texts
from serving.sim.paper.reasons import reasons_of
from serving.sim.paper.reproduction import Reproduced, Reproduction
from serving.sim.paper.rows import Row

HOW = (
    "`run`: scheduler, engines or transfers ran in virtual time. `model`: one question to the cost model. `fitted`: "
    "the cost model was given this figure, or a choice was made in view of it, so that agreement proves little. "
    "`quoted`: another system's figure. A bound has an error only if it is broken."
)
_COLUMNS = ("", "unit", "published", "ours", "error", "how", "source")


def report_markdown(done: Reproduction) -> str:
    """Everything but the plots."""
    lines = ["# Published figures reproduced", "", f"{_mode(done)} {done.score.text}.", "", HOW, ""]
    for part in done.parts:
        lines += _section(part)
    return "\n".join(lines).rstrip() + "\n"


def error_table_markdown(done: Reproduction) -> str:
    """The rows that say most; of an experiment that marks none, the one that is furthest off."""
    lines = [f"{done.score.text}.", "", "| experiment | row | published | ours | error | how |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- |")
    for part in done.parts:
        for row in headlines(part):
            mark = " ¹" if part.reason(row) else ""
            cells = (
                part.experiment.name, f"{row.label}, {row.unit}", texts.published_text(row), texts.ours_text(row),
                f"{texts.error_text(row)}{mark}", row.how_text,
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    if any(part.reason(row) for part in done.parts for row in headlines(part)):
        lines += ["", "¹ The reason is in the report."]
    return "\n".join(lines) + "\n"


def headlines(part: Reproduced) -> list[Row]:
    """Rows for the short table: those marked; of an experiment without any, the one that is furthest off."""
    compared = [row for row in part.findings.rows if row.error is not None]
    marked = [row for row in compared if row.headline]
    return marked or sorted(compared, key=lambda row: -abs(row.error or 0.0))[:1]


def _mode(done: Reproduction) -> str:
    return f"Seed {done.seed}{', quick' if done.quick else ''}."


def _section(part: Reproduced) -> list[str]:
    experiment, findings = part.experiment, part.findings
    lines = [f"## {experiment.name}: {experiment.title}", "", f"How: {experiment.method}.", ""]
    lines += _table(findings.rows)
    lines.append("")
    for reason in reasons_of(part):
        lead = f"**{reason.text}**" if reason.unexplained else f"Beyond 5 %, because {reason.text}"
        lines.append(f"- {lead}: {reason.rows}.")
    lines += [f"- {note}" for note in findings.notes]
    return [*lines, ""] if lines[-1] else lines


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(_COLUMNS)} |", "| --- | --- | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        cells = (
            row.label, row.unit, texts.published_text(row), texts.ours_text(row), texts.error_text(row), row.how_text,
            row.source,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines
