"""A comparison of two simulations as tables, charts, a page, in the terminal and as JSON."""

import math

import msgspec
from msgspec import structs
from rich.console import Console
from rich.text import Text

from loadgen.report import numbers
from loadgen.report.chart import Axis, Line, LineChart, TimeAxis, tidy
from loadgen.report.fragments import Html, element, html, join
from loadgen.report.page import Page, facts, render
from loadgen.report.table import Cell, Table, TableRow, Tone, columns, html_table, table_of, terminal_table
from serving.version import VERSION
from serving.virtual.comparison.comparison import SimulatedFigure, SimulationComparison
from serving.virtual.comparison.run_file import SimulatedRun
from serving.virtual.report.result_json import plain

# Tables of a comparison, for page and terminal.

_NO_CHANGE = 0.0005
"""Relative change below which a figure counts as equal."""


def figure_table(compared: SimulationComparison) -> Table:
    """Every figure of both runs and its change, coloured if one direction is better."""
    rows = [
        TableRow([one.name, value(one, one.baseline), value(one, one.other), Cell(change(one), _tone(one))])
        for one in compared.figures
    ]
    return Table(columns("", "baseline", "other", "change"), rows)


def paired_table(compared: SimulationComparison) -> Table:
    """The same requests in both runs: how many got faster or slower, and by how much."""
    heads = columns("same requests", "in both", "faster", "slower", "median change", "least", "most")
    rows = [
        [
            one.name, numbers.count(one.pairs), numbers.count(one.faster), numbers.count(one.slower),
            *(_signed(seconds) for seconds in (one.median_s, one.least_s, one.most_s)),
        ]
        for one in compared.paired
    ]  # fmt: skip
    return table_of(heads, rows, "Faster, slower: by more than a thousandth. Change: other run less baseline.")


def settings_table(compared: SimulationComparison) -> Table:
    """Settings that differ."""
    missing = numbers.MISSING
    rows = [[name, left or missing, right or missing] for name, left, right in compared.settings]
    return table_of(columns("setting", "baseline", "other", long=("baseline", "other")), rows)


def decision_table(compared: SimulationComparison) -> Table:
    """How often each kind of decision was made."""
    counts = compared.baseline.decision_counts, compared.other.decision_counts
    rows = [[kind, *(numbers.count(one.get(kind, 0)) for one in counts)] for kind in sorted({*counts[0], *counts[1]})]
    return table_of(columns("decision", "baseline", "other"), rows)


def value(figure: SimulatedFigure, number: float | None) -> str:
    """A figure's value in its unit."""
    if number is None:
        return numbers.MISSING
    if figure.unit == "s":
        return numbers.duration(number)
    if figure.unit == "share":
        return numbers.share(number)
    return numbers.count(int(number)) if figure.unit == "count" else numbers.significant(number)


def change(figure: SimulatedFigure) -> str:
    """Change in per cent; of a share in percentage points."""
    found = figure.change
    if found is None or figure.unit != "share":
        return numbers.change(found)
    return f"{numbers.change(found).removesuffix(' %')} points"


def _tone(figure: SimulatedFigure) -> Tone:
    found = figure.change
    if found is None or math.isnan(found) or abs(found) < _NO_CHANGE or figure.better == "neither":
        return ""
    return "good" if (found > 0) == (figure.better == "more") else "bad"


def _signed(seconds: float) -> str:
    """A duration with its sign; 0 has none. Below a nanosecond it is rounding."""
    seconds = 0.0 if abs(seconds) < 1e-9 else seconds
    sign = "+" if seconds > 0 else "−" if seconds < 0 else ""
    return sign + numbers.duration(abs(seconds))


# Charts of a comparison: both runs in each plot, the baseline blue, the other one orange.

_COLORS = ("blue", "orange")
_LATENCIES = (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token"), ("e2e_s", "End to end"))
_PANELS = (
    ("prefill_queue_tokens", "Tokens queued for prefill", "count", False),
    ("decode_batch", "Sequences decoding", "count", False),
    ("step_s", "Decode step", "s", False),
    ("decode_kv_share", "KV blocks in use, decode", "share", False),
    ("pool_share", "KV-cache pool's memory in use", "share", False),
    ("prefill_npus", "NPUs of prefill", "count", True),
    ("decode_npus", "NPUs of decode", "count", True),
)


def curve_charts(baseline: SimulatedRun, other: SimulatedRun) -> list[LineChart]:
    """Cumulative distributions of each latency that both runs have."""
    found = []
    for name, title in _LATENCIES:
        sides = [_curve(run, name) for run in (baseline, other)]
        if not all(sides):
            continue
        xs = sorted({x for side in sides for x, _ in side})
        lines = [
            Line(name=role, values=_at(xs, dict(side)), color=color)
            for role, side, color in zip(("baseline", "other"), sides, _COLORS, strict=True)
        ]
        chart = LineChart(
            id=f"cdf-{name}", title=title, note="Share of requests at or below.", x=Axis(unit="s"),
            y=Axis(unit="share"), xs=xs, lines=lines, bridge=True,
        )  # fmt: skip
        found.append(tidy(chart))
    return found


def time_charts(baseline: SimulatedRun, other: SimulatedRun) -> list[LineChart]:
    """Curves over time that have values above zero."""
    ends = [run.timeline["at_s"][-1] for run in (baseline, other) if run.timeline.get("at_s")]
    axis = TimeAxis(max((end for end in ends if end is not None), default=0.0) or 1.0)
    found = []
    for name, title, unit, steps in _PANELS:
        sides = [_line(run, name) for run in (baseline, other)]
        if not any(value for side in sides for value in side.values()):
            continue
        xs = sorted({at for side in sides for at in side})
        lines = [
            Line(name=role, values=_at(xs, side), color=color, steps=steps)
            for role, side, color in zip(("baseline", "other"), sides, _COLORS, strict=True)
        ]
        chart = axis.chart(f"line-{name}", title, xs, lines, unit)
        found.append(structs.replace(chart, bridge=True))
    return found


def _curve(run: SimulatedRun, name: str) -> list[tuple[float, float]]:
    """Pairs of latency and share, ascending; of equal latencies only the one with the largest share."""
    pairs = zip(run.curves.get(name, ()), run.curves.get("share", ()), strict=False)
    return sorted({x: share for x, share in pairs if x is not None and share is not None}.items())


def _line(run: SimulatedRun, name: str) -> dict[float, float]:
    pairs = zip(run.timeline.get("at_s", ()), run.timeline.get(name, ()), strict=False)
    return {at: value for at, value in pairs if at is not None and value is not None}


def _at(xs: list[float], values: dict[float, float]) -> list[float | None]:
    """A curve at common positions; gaps where it was not sampled."""
    return [values.get(x) for x in xs]


# compare.html: two simulations on one self-contained page. The same results give the same bytes.

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
    page.add("settings", "What differs", html_table(settings_table(compared)), same)
    page.add("figures", "Figures", html_table(figure_table(compared)), html_table(paired_table(compared)))
    page.add("latency", "Latency", page.draw(curve_charts(baseline, other), three=True))
    page.add("time", "Over time", page.draw(time_charts(baseline, other)))
    page.add("decisions", "Decisions", html_table(decision_table(compared)))
    return render(page, f"cloudmatrix {VERSION}")


def _notes(warnings: list[str]) -> Html:
    items = join([Html(f"<li>{html(one)}</li>") for one in warnings])
    return Html(f'<ul class="notes">{items}</ul>') if warnings else Html("")


# A comparison in a terminal: differing settings, figures, warnings.


def print_comparison(compared: SimulationComparison, console: Console) -> None:
    """Print a comparison."""
    console.print(Text(f"{compared.other.path} against {compared.baseline.path}", style="bold"), soft_wrap=True)
    for name, left, right in compared.settings:
        console.print(Text(f"  {name}: {left or 'none'} → {right or 'none'}"), soft_wrap=True)
    if not compared.settings:
        console.print(Text("  All settings are the same."))
    for warning in compared.warnings:
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    for table in (figure_table(compared), paired_table(compared)):
        if table.rows:
            console.print()
            console.print(terminal_table(table, console.width))


# A comparison as JSON, for scripts: figures in SI units with their change; unknown values are null.

SCHEMA = "cloudmatrix-comparison/1"


def comparison_json(compared: SimulationComparison) -> bytes:
    """The document, with a newline at its end."""
    document = {
        "schema": SCHEMA,
        "baseline": compared.baseline.path,
        "other": compared.other.path,
        "settings": [{"name": name, "baseline": left, "other": right} for name, left, right in compared.settings],
        "figures": [{**plain(one), "change": plain(one.change)} for one in compared.figures],
        "paired": plain(compared.paired),
        "warnings": compared.warnings,
    }
    return msgspec.json.encode(document) + b"\n"
