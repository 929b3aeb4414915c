"""report.html: every row with its charts, on one page that needs nothing else. The same rows give the same bytes."""

from loadgen.report.fragments import Html, element, html, join, tile
from loadgen.report.html import render
from loadgen.report.page import Page, facts, tiles
from loadgen.report.table import html_table
from serving.tools.paper.charts import part_charts
from serving.tools.paper.markdown import HOW
from serving.tools.paper.reasons import reasons_of
from serving.tools.paper.reproduction import Reproduced, Reproduction, Score
from serving.tools.paper.tables import overview_table, rows_table
from serving.version import VERSION

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
    legend = element("p", HOW.replace("`", ""), "soft")
    page.add("overview", "Overview", legend, html_table(overview_table(done)))
    for part in done.parts:
        name = part.experiment.name
        method = element("p", f"How: {part.experiment.method}.", "soft")
        charts, table = page.draw(part_charts(part)), html_table(rows_table(part))
        page.add(name, f"{name}: {part.experiment.title}", method, charts, table, _notes(part), short=name)
    return render(page, f"cloudmatrix {VERSION}")


def _tiles(score: Score) -> list[Html]:
    unexplained = element("span", score.unexplained, "bad") if score.unexplained else score.unexplained
    return [
        tile("Within 5 %", score.close, f"of {score.rows} rows", []),
        tile("Within 5 %, nothing fitted", score.free_close, f"of {score.free} rows", []),
        tile("Further off, with a reason", score.explained, "", []),
        tile("Unexplained", unexplained, "", []),
        tile("Quoted from other systems", score.quoted, "", []),
    ]


def _notes(part: Reproduced) -> Html:
    """Reasons of what is far off, and what a reader has to know."""
    lines: list[Html] = []
    for reason in reasons_of(part):
        lead = f"{reason.text}:" if reason.unexplained else f"Beyond 5 %, because {reason.text}:"
        marked = element("span", lead, "bad" if reason.unexplained else "warn")
        lines.append(Html(f"<li>{marked} {html(reason.rows)}.</li>"))
    lines += [element("li", note) for note in part.findings.notes]
    return Html(f'<ul class="remarks">{join(lines)}</ul>') if lines else Html("")
