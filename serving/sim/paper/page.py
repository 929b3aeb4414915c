"""report.html: every row with its plots, on one page that needs nothing else.

It looks as the simulation's own report does, and uses its drawings. The same rows give the same bytes.
"""

import importlib.resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from serving.sim.paper import texts
from serving.sim.paper.markdown import HOW
from serving.sim.paper.page_plots import part_plots
from serving.sim.paper.reasons import reasons_of
from serving.sim.paper.reproduction import Reproduced, Reproduction
from serving.sim.paper.rows import CLOSE
from serving.sim.report import numbers
from serving.version import VERSION


def report_page(done: Reproduction, *, device: str, model: str) -> str:
    """The page.

    Args:
        device, model: titles of what was costed.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(_asset("serving.sim.paper", "reproduce.html.j2"))
    return template.render(
        css=Markup(_asset("serving.sim.report", "report.css")),
        parts=[_part(part) for part in done.parts],
        score=done.score,
        seed=done.seed,
        quick=done.quick,
        device=device,
        model=model,
        legend=HOW.replace("`", ""),
        version=VERSION,
    )


def _asset(package: str, name: str) -> str:
    return (importlib.resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def _part(part: Reproduced) -> dict[str, Any]:
    errors = [abs(row.error) for row in part.findings.rows if row.error is not None]
    unexplained = any(reason.unexplained for reason in reasons_of(part))
    worst = max(errors, default=0.0)
    return {
        "name": part.experiment.name,
        "title": part.experiment.title,
        "method": part.experiment.method,
        "compared": len(errors),
        "close": sum(error <= CLOSE for error in errors),
        "mean": numbers.share(sum(errors) / len(errors)) if errors else numbers.MISSING,
        "worst": f"{100 * worst:.1f} %",
        "worst_css": "broken" if unexplained else "far" if worst > CLOSE else "",
        "plots": [Markup(plot) for plot in part_plots(part)],
        "rows": [_row(part, index) for index in range(len(part.findings.rows))],
        "reasons": [
            {
                "css": "unexplained" if reason.unexplained else "reason",
                "lead": f"{reason.text}:" if reason.unexplained else f"Beyond 5 %, because {reason.text}:",
                "rows": reason.rows,
            }
            for reason in reasons_of(part)
        ],
        "notes": part.findings.notes,
    }


def _row(part: Reproduced, index: int) -> dict[str, str]:
    row = part.findings.rows[index]
    far = row.error is not None and abs(row.error) > CLOSE
    return {
        "label": row.label,
        "unit": row.unit,
        "published": texts.published_text(row),
        "ours": texts.ours_text(row),
        "error": texts.error_text(row),
        "css": "far" if far else "",
        "how": row.how_text,
        "source": row.source,
    }
