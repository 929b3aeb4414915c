"""report.html: every row with its charts, on one self-contained page. The same rows give the same bytes."""

import re
from collections.abc import Sequence
from pathlib import Path

from hardware.cost.published import RowKind
from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Chart, Key, Limit, ScatterChart, ScatterTrace, compact
from loadgen.report.fragments import Html, element, html, join, section, tile
from loadgen.report.page import Page, facts, render, tiles
from loadgen.report.table import html_table
from serving.terminal import write_file
from serving.tools.paper import paper_tables
from serving.tools.paper.experiment import Curve, Plot, Row, Setting
from serving.tools.paper.paper_tables import HOW, overview_table, reasons_of, report_markdown, rows_table
from serving.tools.paper.reproduction import Reproduced, Reproduction, Score
from serving.tools.paper.summary_chart import summary_file, summary_svg
from serving.version import VERSION

_READ = (
    "A point for each published figure that is compared, further right where ours is larger; the band is 5 %. Point at "
    "one for its figures. Hollow points were fitted, derived or read back: that they agree proves little."
)
_GROUPS = {"table": "Tables", "fig": "Figures", "xds": "xDeepServe", "other": "Others"}
"""Navigation titles by prefix of the experiments' names; each links to the first of them."""
_KINDS = ((RowKind.FITTED, "Fitted"), (RowKind.DERIVED, "Derived"), (RowKind.READ_BACK, "Read back"))
_FOOTNOTE = (
    "Published figures: arXiv 2506.12708v2 (CloudMatrix-Infer), arXiv 2508.02520 (xDeepServe), and others named."
)


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
    """A list of the reasons for missed figures, and of the experiment's notes."""
    lines: list[Html] = []
    for reason in reasons_of(part):
        lead = f"{reason.text}:" if reason.unexplained else f"Missed, because {reason.text}:"
        marked = element("span", lead, "bad" if reason.unexplained else "warn")
        lines.append(Html(f"<li>{marked} {html(reason.rows)}.</li>"))
    lines += [element("li", note) for note in part.findings.notes]
    return Html(f'<ul class="remarks">{join(lines)}</ul>') if lines else Html("")


# Charts of one experiment: its curves, and published values next to ours, one chart for each unit.

_COLORS = ("blue", "green", "violet", "red")
_LANE_PX = 34
_ROOM = 1.18
"""Factor on the longest bar, for the error written behind it."""


def part_charts(part: Reproduced) -> list[Chart]:
    """All charts of an experiment."""
    name = part.experiment.name
    charts: list[Chart] = [_curves(f"{name}-curve-{number}", plot) for number, plot in enumerate(part.findings.plots)]
    by_unit: dict[str, list[Row]] = {}
    for row in part.findings.rows:
        if row.ours is not None:
            by_unit.setdefault(row.unit, []).append(row)
    charts += [_bars(f"{name}-bars-{number}", unit, rows) for number, (unit, rows) in enumerate(by_unit.items())]
    return charts


def _bars(chart_id: str, unit: str, rows: Sequence[Row]) -> BarChart:
    """Published and ours under each other in a lane for each row, with the error behind."""
    highest = max([max(row.published, row.ours or 0.0) for row in rows]) or 1.0
    bars = []
    for lane, row in enumerate(rows):
        ours = row.ours or 0.0
        said = f"{row.label}: published {paper_tables.published_text(row)}, ours {paper_tables.ours_text(row)} {unit}"
        error = numbers.change((ours - row.published) / row.published if row.published else None)
        longer = ours >= row.published
        bars.append(Bar(lane, 0.0, row.published, 0, said, after="" if longer else error))
        bars.append(Bar(lane, 0.0, ours, 1, said, after=error if longer else "", part=1))
    return BarChart(
        id=chart_id,
        title=f"published and ours, {unit}",
        x=Axis(unit="number", label=unit, low=0.0, high=_ROOM * highest),
        lanes=[row.label for row in rows],
        lane_px=_LANE_PX,
        parts=2,
        keys=[Key(name="published", color="grey"), Key(name="ours", color="blue")],
        bars=bars,
    )


def _curves(chart_id: str, plot: Plot) -> ScatterChart:
    """Our curves, and published figures as points."""
    ours = [curve for curve in plot.curves if not curve.published]
    colors = {curve.name: _COLORS[number % len(_COLORS)] for number, curve in enumerate(ours)}
    xs = [float(x) for curve in plot.curves for x in curve.xs]
    return ScatterChart(
        id=chart_id,
        title=plot.title,
        note=plot.y_label,
        x=Axis(unit="number", label=plot.x_label, low=min(xs, default=0.0), high=1.02 * max(xs, default=1.0)),
        y=Axis(unit="number"),
        traces=[_trace(curve, colors.get(curve.name, "orange")) for curve in plot.curves],
        limits=[Limit(name=label, value=value) for label, value in plot.limits],
    )


def _trace(curve: Curve, color: str) -> ScatterTrace:
    return ScatterTrace(
        name=curve.name,
        xs=[compact(x) or 0.0 for x in curve.xs],
        ys=[compact(y) or 0.0 for y in curve.ys],
        color="orange" if curve.published else color,
        joined=not curve.published,
    )


# Words of each experiment's section: what it shows, in a sentence or two.

SHOWN: dict[str, str] = {
    "table1": (
        "The simulated fabric keeps to the published bandwidth and latency of every path. The figures are its "
        "inputs, so this is a check of the simulator, not of a prediction."
    ),
    "table2": (
        "A pool that loads a model once for all instances makes a cold start of eight as quick as one alone, and "
        "every switch a warm one; a cache in each node's own DRAM hits one time in eight."
    ),
    "table3": (
        "One fitted efficiency gives both published prefill rates. The default balance of experts is drawn: a skew, "
        "EPLB's map, and how far a step's prompts deviate, which is fitted here and predicts SGLang's ratio."
    ),
    "table4": (
        "Decode engines that are kept full reach the published rate at the published batch. The other systems' "
        "figures are repeated, not run."
    ),
    "table5": (
        "The published batch keeps its limit here, too, at nearly the published rate. How large a batch could be "
        "follows from the fitted TPOT: published batches are not always the largest that the limit allows."
    ),
    "table7": (
        "Dispatch and combine take longer with more ranks, but little beyond 64. `line alone` is the cost model's "
        "formula, which it uses between and beyond the published degrees."
    ),
    "table8": (
        "Core attention uses two thirds of the compute peak or most of the memory rate, whichever binds. Both are "
        "inputs of the cost model."
    ),
    "table10": ("One utilisation for all matrix products is within 4 % of each of the six that were measured."),
    "table11": (
        "Counting ports over nodes, sub-planes and switches gives every published number: how many switches a "
        "size of supernode needs, and which sizes use them fully."
    ),
    "fig20": (
        "Two microbatches that share the cores hide communication behind computation; the gain is a few per cent "
        "in decode, and largest at a batch of 96."
    ),
    "fig21": (
        "In prefill the same idea saves about a quarter of a layer's time; the gain shrinks with longer prompts."
    ),
    "fig22": (
        "One drafted token a step is worth half again as much throughput at small batches and little at large "
        "ones, since a step with drafts costs more."
    ),
    "other-apart": (
        "With attention and experts on own dies a step at 16K tokens takes as long as published within 7 %, and gains "
        "and losses have the published sign. At 32K it comes out a quarter to two fifths too slow."
    ),
    "other-systems": (
        "Other models, engines and devices. An engine's profile was fitted on one row of a kind, and the others are "
        "predicted: most are within 5 %."
    ),
    "other-errors": (
        "Each row is predicted from the others: how often its stated range contains the published figure, and how wide "
        "that range is. Leaving out a whole class of rows is the harder test."
    ),
    "fig23": (
        "Reused blocks cut the time to the first token and raise throughput. The published gains disagree with "
        "each other, so that one load rate cannot meet them all."
    ),
    "fig24": (
        "A large supernode wastes fewer NPUs on blocks that do not fit than a small one. The distribution of "
        "block sizes is not published; the one that comes closest was chosen."
    ),
    "xds-peak": (
        "Predicted from CloudMatrix-Infer's operators, the time per token is a few per cent too long; given "
        "xDeepServe's own core attention it is right. Every kernel's share of an iteration is wrong: how a profiler "
        "shares the time among kernels is not modelled."
    ),
    "xds-split": (
        "Attention and experts on different dies: the times of sending and returning follow from another paper's "
        "exchanges and links; given xDeepServe's own core attention the iteration is right, too."
    ),
    "xds-production": (
        "The whole simulated system, from gateway to decode, at the request rate that meets the published TTFT. Rate, "
        "lengths and acceptance are unpublished and were chosen, the last in view of the time per token."
    ),
    "xds-send": "Two words and a copy price one transfer; only bounds of the curves were printed.",
    "xds-eplb": (
        "A layer as skewed as the published one gains more from EPLB than published; other layers are less skewed."
    ),
    "xds-waits": (
        "What a profiler books on combine is mostly the wait for the die with the busiest experts, which the drawn "
        "load predicts; what it books on dispatch is not explained by the load."
    ),
    "other-revive": "Recovery is one base and what each case adds; only the loading of a role switch is large.",
    "other-ratio": "The closed form of the best ratio agrees with a search over all divisions of the cost model.",
    "other-zone": "Splitting pays on the supernode and not between single cards, by a few per cent each.",
}
"""By the experiment's name."""


# report.md, report.html and summary.svg, written.


def write_report(folder: Path, done: Reproduction, setting: Setting) -> tuple[Path, Path, Path]:
    """Write all three into a folder that exists.

    Returns: their paths.
    Raises: ConfigError if a file cannot be written.
    """
    markdown, page, drawing = folder / "report.md", folder / "report.html", folder / "summary.svg"
    write_file(markdown, report_markdown(done).encode())
    html = report_page(done, device=setting.cost.device.title, model=setting.cost.shape.name)
    write_file(page, html.encode())
    write_file(drawing, summary_file(done))
    return markdown, page, drawing
