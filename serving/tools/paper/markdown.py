"""report.md, and the short error table of serving/virtual/README.md."""

from loadgen.report.table import markdown_table
from serving.tools.paper import texts
from serving.tools.paper.reasons import reasons_of
from serving.tools.paper.reproduction import Reproduced, Reproduction
from serving.tools.paper.tables import headline_table, rows_table

HOW = (
    "`run`: scheduler, engines or transfers ran in virtual time. `model`: one question to the cost model. `predicted`: "
    "nothing was fitted to this figure, chosen in view of it or taken from its measurement; only these rows say how "
    "far to trust a prediction. `fitted`: something was, or a part of the answer was given. `derived`: arithmetic on "
    "published figures or on another row. `read back`: an input. `quoted`: another system's figure. A bound has an "
    "error only if it is broken."
)


def report_markdown(done: Reproduction) -> str:
    """The whole report without the plots."""
    lines = ["# Published figures reproduced", "", f"{_mode(done)} {done.score.text}.", "", HOW, ""]
    for part in done.parts:
        lines += _section(part)
    return "\n".join(lines).rstrip() + "\n"


def error_table_markdown(done: Reproduction) -> str:
    """The short table; see `headline_table`."""
    lines = [f"{done.score.text}.", "", *markdown_table(headline_table(done))]
    if any(part.reason(row) for part in done.parts for row in texts.headlines(part)):
        lines += ["", "¹ The reason is in the report."]
    return "\n".join(lines) + "\n"


def _mode(done: Reproduction) -> str:
    return f"Seed {done.seed}{', quick' if done.quick else ''}."


def _section(part: Reproduced) -> list[str]:
    experiment, findings = part.experiment, part.findings
    lines = [f"## {experiment.name}: {experiment.title}", "", f"How: {experiment.method}.", ""]
    lines += markdown_table(rows_table(part))
    lines.append("")
    for reason in reasons_of(part):
        lead = f"**{reason.text}**" if reason.unexplained else f"Missed, because {reason.text}"
        lines.append(f"- {lead}: {reason.rows}.")
    lines += [f"- {note}" for note in findings.notes]
    return [*lines, ""] if lines[-1] else lines
