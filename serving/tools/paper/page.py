"""report.html: every row with its charts, on one self-contained page. The same rows give the same bytes."""

import re

from hardware.cost.row_kind import RowKind
from loadgen.report.fragments import Html, element, html, join, section, tile
from loadgen.report.html import render
from loadgen.report.page import Page, facts, tiles
from loadgen.report.table import html_table
from serving.tools.paper.charts import part_charts
from serving.tools.paper.markdown import HOW
from serving.tools.paper.reasons import reasons_of
from serving.tools.paper.reproduction import Reproduced, Reproduction, Score
from serving.tools.paper.shown import SHOWN
from serving.tools.paper.summary_chart import summary_svg
from serving.tools.paper.tables import overview_table, rows_table
from serving.version import VERSION

_READ = (
    "A point for each published figure that is compared, further right where ours is larger; the band is 5 %. Point at "
    "one for its figures. Hollow points were fitted, derived or read back: that they agree proves little."
)
_GROUPS = {"table": "Tables", "fig": "Figures", "xds": "xDeepServe"}
"""Navigation titles by prefix of the experiments' names; each links to the first of them."""
_KINDS = ((RowKind.FITTED, "Fitted"), (RowKind.DERIVED, "Derived"), (RowKind.READ_BACK, "Read back"))
_FOOTNOTE = "Published figures: arXiv 2506.12708v2 (CloudMatrix-Infer), arXiv 2508.02520 (xDeepServe)."


def report_page(done: Reproduction, *, device: str, model: str) -> str:
    """The page.

    Args:
        device, model: titles of what was costed.
    """
    page = Page("Published figures reproduced", footnote=_FOOTNOTE)
    page.body.append(element("h1", page.title))
    page.body.append(
        facts([("seed", done.seed), ("", "quick" if done.quick else ""), ("device", device), ("model", model)])
    )
    page.body.append(tiles(_tiles(done.score)))
    page.add("summary", "Summary", _drawing(done), element("p", _READ, "soft"))
    legend = element("p", HOW.replace("`", ""), "soft")
    page.add("overview", "Every experiment", legend, html_table(overview_table(done)), short="Experiments")
    named: set[str] = set()
    for part in done.parts:
        name, title = part.experiment.name, f"{part.experiment.name}: {part.experiment.title}"
        words = (
            element("p", _sentence(part)),
            page.draw(part_charts(part)),
            html_table(rows_table(part)),
            _notes(part),
        )
        page.body.append(section(name, title, *words))
        group = _GROUPS.get(re.split(r"[-\d]", name)[0], name)
        if group not in named:
            named.add(group)
            page.navigation.append((name, group))
    return render(page, f"cloudmatrix {VERSION}")


def _sentence(part: Reproduced) -> str:
    return f"Measured: {part.experiment.method}. {SHOWN.get(part.experiment.name, '')}".rstrip().replace("`", "")


def _drawing(done: Reproduction) -> Html:
    """The summary's picture; on a narrow page it scrolls in its panel."""
    return Html(f'<div class="panel scroll"><div style="min-width:640px">{summary_svg(done)}</div></div>')


def _tiles(score: Score) -> list[Html]:
    unexplained = element("span", score.unexplained, "bad") if score.unexplained else score.unexplained
    return [
        tile("Predicted within 5 %", score.predicted.close, f"of {score.predicted.rows} rows", []),
        tile("Predicted within 10 %", score.predicted.near, f"of {score.predicted.rows} rows", []),
        *(
            tile(f"{name} within 5 %", score.counts[kind].close, f"of {score.counts[kind].rows} rows", [])
            for kind, name in _KINDS
        ),
        tile("Missed, with a reason", score.explained, "", []),
        tile("Unexplained", unexplained, "", []),
        tile("Quoted from other systems", score.quoted, "", []),
    ]


def _notes(part: Reproduced) -> Html:
    """Reasons of what is far off, and what a reader has to know."""
    lines: list[Html] = []
    for reason in reasons_of(part):
        lead = f"{reason.text}:" if reason.unexplained else f"Missed, because {reason.text}:"
        marked = element("span", lead, "bad" if reason.unexplained else "warn")
        lines.append(Html(f"<li>{marked} {html(reason.rows)}.</li>"))
    lines += [element("li", note) for note in part.findings.notes]
    return Html(f'<ul class="remarks">{join(lines)}</ul>') if lines else Html("")
