"""compare.html: two simulations on one self-contained page. The same results give the same bytes."""

from loadgen.report.fragments import Html, element, html, join
from loadgen.report.html import render
from loadgen.report.page import Page, facts
from loadgen.report.table import html_table
from serving.version import VERSION
from serving.virtual.comparison import tables
from serving.virtual.comparison.charts import curve_charts, time_charts
from serving.virtual.comparison.comparison import SimulationComparison

_FOOTNOTE = (
    "Times are virtual. A simulation repeats exactly: a difference comes from the settings or the load, and needs no "
    "interval."
)


def comparison_page(compared: SimulationComparison) -> str:
    """The page: HTML of one file."""
    baseline, other = compared.baseline, compared.other
    page = Page("Two simulations", footnote=_FOOTNOTE)
    page.body += [
        element("h1", page.title),
        facts(
            [("baseline", baseline.path), ("other", other.path), ("model", baseline.name), ("load", baseline.workload)]
        ),
        _notes(compared.warnings),
    ]
    same = "" if compared.settings else element("p", "All settings are the same.", "soft")
    page.add("settings", "What differs", html_table(tables.settings_table(compared)), same)
    page.add("figures", "Figures", html_table(tables.figure_table(compared)), html_table(tables.paired_table(compared)))
    page.add("latency", "Latency", page.draw(curve_charts(baseline, other), three=True))
    page.add("time", "Over time", page.draw(time_charts(baseline, other)))
    page.add("decisions", "Decisions", html_table(tables.decision_table(compared)))
    return render(page, f"cloudmatrix {VERSION}")


def _notes(warnings: list[str]) -> Html:
    items = join([Html(f"<li>{html(one)}</li>") for one in warnings])
    return Html(f'<ul class="notes">{items}</ul>') if warnings else Html("")
