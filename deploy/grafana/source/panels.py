"""Panels and boards, by Grafana's own types."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef, DynamicConfigValue

from loadgen.report.palette import COLORS, POOLS

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
"""The data source, as deploy/grafana/provisioning names it."""
POOL_COLORS = {
    f"/^({'|'.join(pool for pool in POOLS if POOLS[pool] == color)})$/": COLORS[color][1]
    for color in dict.fromkeys(POOLS.values())
}
"""By a regular expression for legends. The dark palette, since Grafana is dark by default."""
WIDTH, HEIGHT, NUMBER_WIDTH, NUMBER_HEIGHT = 8, 8, 4, 4
"""Sizes of a panel, in Grafana's 24 columns and in rows of 30 pixels."""


@dataclass(frozen=True)
class Panel:
    """One chart.

    Args:
        unit: Grafana's name: `s`, `Bps`, `percentunit`, `short`.
        lines: legend and query of each line; `{{label}}` in a legend is replaced with the label's value.
        number: show only the latest value.
        stacked: series are stacked.
    """

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    about: str = ""
    number: bool = False
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """A heading and the panels under it."""

    title: str
    panels: Sequence[Panel]


def board(uid: str, title: str, about: str, rows: Sequence[Row]) -> str:
    """A board's JSON for Grafana's provisioning."""
    made = (
        dashboard.Dashboard(f"CloudMatrix-Infer: {title}")
        .uid(f"cloudmatrix-{uid}")
        .description(about)
        .tags(["cloudmatrix"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Boards").type(DashboardLinkType.DASHBOARDS).tags(["cloudmatrix"]).as_dropdown(True)
        )
    )
    for row in rows:
        made = made.with_row(dashboard.Row(row.title))
        for one in row.panels:
            made = made.with_panel(_number(one) if one.number else _lines(one))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _lines(one: Panel) -> timeseries.Panel:
    panel = timeseries.Panel().title(one.title).description(one.about).unit(one.unit).datasource(SOURCE)
    panel = panel.span(WIDTH).height(HEIGHT).min(0).line_width(1).fill_opacity(30 if one.stacked else 5)
    below = common.VizLegendOptions().show_legend(True).display_mode(kinds.LegendDisplayMode.LIST)
    panel = panel.legend(below.placement(kinds.LegendPlacement.BOTTOM)).show_points(kinds.VisibilityMode.NEVER)
    panel = panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI))
    if one.stacked:
        panel = panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    for letter, (legend, query) in zip("ABCDEFGH", one.lines, strict=False):
        panel = panel.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter))
    if any(legend in ("{{pool}}", *POOLS) for legend, _ in one.lines):
        for pattern, color in POOL_COLORS.items():
            fixed = [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})]
            panel = panel.override_by_regexp(pattern, fixed)
    return panel


def _number(one: Panel) -> stat.Panel:
    panel = stat.Panel().title(one.title).description(one.about).unit(one.unit).datasource(SOURCE)
    panel = panel.span(NUMBER_WIDTH).height(NUMBER_HEIGHT).graph_mode(kinds.BigValueGraphMode.NONE)
    for letter, (legend, query) in zip("ABCDEFGH", one.lines, strict=False):
        panel = panel.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter).instant())
    return panel


# PromQL of the boards. Several gateways may export the same series, so each counts once, with its largest value.

WINDOW = "$__rate_interval"
"""Variable that Grafana sets from the zoom; a test replaces it with a duration."""


def value(name: str, *by: str, each: str = "engine") -> str:
    """A gauge, summed by labels, after taking the maximum by `each`."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) ({name}))"


def rate(name: str, *by: str, each: str = "engine") -> str:
    """A counter's rate per second, summed by labels."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) (rate({name}[{WINDOW}])))"


def increase(name: str, *by: str, each: str = "engine", window: str = "1h") -> str:
    """Growth of a counter within a window, summed by labels."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) (increase({name}[{window}])))"


def quantile(share: float, histogram: str, *by: str, each: str = "engine", selector: str = "") -> str:
    """A quantile of a histogram, by labels."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket{selector}', *by, 'le', each=each)})"


def mean(histogram: str, *by: str, each: str = "engine") -> str:
    """A histogram's mean, by labels."""
    return f"{rate(f'{histogram}_sum', *by, each=each)} / {rate(f'{histogram}_count', *by, each=each)}"


def _labels(each: str, by: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys((*each.split(), *by)))
