"""report.html of a demo: every step's outcome on one self-contained page."""

from collections.abc import Sequence
from html import escape

from loadgen.report import numbers
from loadgen.report.fragments import Html, element, join, tile
from loadgen.report.page import Page, facts, render, tiles
from loadgen.report.table import html_table
from serving.tools.demo.demo_run import outcome_text
from serving.tools.demo.stage import DemoRun, StepOutcome, StepReport
from serving.version import VERSION

_FOOTNOTE = (
    "Figures are of one short run on this machine, with steps held at 12.5 ms so that a reader can follow: they show "
    "what the system does, not how fast it is."
)


def report_page(run: DemoRun) -> str:
    """The page: HTML of one file. Every text is escaped; it loads no external resource."""
    page = Page("cloudmatrix demo", footnote=_FOOTNOTE)
    page.body += [element("h1", page.title), facts(_facts(run)), _verdict(run), tiles(_tiles(run))]
    for outcome in run.outcomes:
        page.add(outcome.step.name, outcome.step.title, *_content(page, outcome))
    page.add("left", "Left behind", *(element("p", line, "bad") for line in run.left))
    return render(page, f"cloudmatrix {VERSION}")


def _facts(run: DemoRun) -> list[tuple[str, object]]:
    return [
        ("model", run.model),
        ("steps", len(run.outcomes)),
        ("lasted", numbers.duration(run.took_s)),
        ("", "ended early" if run.ended_early else ""),
    ]


def _verdict(run: DemoRun) -> Html:
    failed = [outcome.step.title for outcome in run.outcomes if outcome.state == "failed"]
    skipped = [outcome.step.title for outcome in run.outcomes if outcome.state == "skipped"]
    problems = [f"failed: {', '.join(failed)}"] if failed else []
    problems += [f"left behind: {len(run.left)}"] if run.left else []
    if problems:
        return element("p", "; ".join(problems), "lead bad")
    more = f"; skipped: {', '.join(skipped)}" if skipped else ""
    shown = len(run.outcomes) - len(skipped)
    return element("p", f"{shown} {'thing' if shown == 1 else 'things'} shown, nothing failed{more}", "lead good")


def _tiles(run: DemoRun) -> list[Html]:
    return [_tile(outcome.report) for outcome in run.outcomes if outcome.report is not None]


def _tile(report: StepReport) -> Html:
    name, value = report.figure
    figure, _, unit = value.partition(" ")
    return tile(name, figure, unit, report.more)


def _content(page: Page, outcome: StepOutcome) -> Sequence[object]:
    """A step's section."""
    tone = {"done": "good", "skipped": "soft", "failed": "bad"}[outcome.state]
    report = outcome.report
    content = [element("p", outcome.step.text, "soft"), element("p", outcome_text(outcome), tone)]
    if report is not None:
        content += [_quotes(report.quotes), page.draw(report.charts, single=True)]
        content += [html_table(table) for table in report.tables]
        content += [
            Html(f'<p><a href="{escape(path.as_posix())}">{escape(text)}</a></p>') for text, path in report.files
        ]
    return [*content, element("code", "\n".join(outcome.step.commands), "command")]


def _quotes(texts: Sequence[str]) -> Html:
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return element("div", join([element("p", line) for line in lines]), "panel") if lines else Html("")
