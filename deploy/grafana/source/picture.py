"""A picture of a board, drawn from its JSON and a Prometheus' responses, since no Grafana is available.

    python -m deploy.grafana.source.picture user http://127.0.0.1:9090 10 board.png      the last 10 minutes

Panels are placed as in the board, with its titles, units, legends and queries, and with the palette of our pages; fonts
are not Grafana's.
"""

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from cycler import cycler
from matplotlib import pyplot, rcParams
from matplotlib.axes import Axes

from deploy.grafana.source.all import FOLDER
from loadgen.report.palette import COLORS, POOLS

COLUMNS, POINTS = 24, 120
ROW_INCHES, WIDTH_INCHES = 0.3, 15.0
MOST_LINES = 6
"""Lines of a legend; the board itself shows all."""
rcParams["axes.prop_cycle"] = cycler(color=[light for light, _ in COLORS.values()])
_FACTORS = {"s": (1e3, "ms"), "Bps": (1e-6, "MB/s"), "bytes": (2**-20, "MiB"), "percentunit": (100.0, "%")}


def draw(name: str, url: str, minutes: float, out: Path) -> None:
    """Draw one board's last minutes, by the Prometheus at `url`."""
    board = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    end = time.time()  # the same for all: series that are stacked need points at equal times
    figure = pyplot.figure(figsize=(WIDTH_INCHES, rows * ROW_INCHES), dpi=100)
    figure.suptitle(board["title"], x=0.99, y=0.995, ha="right", va="top", weight="bold")
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] / COLUMNS, 1 - place["y"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.005, top - 0.6 / rows, panel["title"], weight="bold", va="center", color="#555")
            continue
        width, height = place["w"] / COLUMNS, place["h"] / rows
        inner = (left + 0.08 * width, top - height * 0.84, width * 0.88, height * 0.66)
        axes = figure.add_axes(inner)
        _draw(axes, panel, url, (end - minutes * 60, end))
    figure.savefig(out)
    pyplot.close(figure)


def _draw(axes: Axes, panel: dict[str, Any], url: str, span: tuple[float, float]) -> None:
    factor, unit = _FACTORS.get(panel["fieldConfig"]["defaults"]["unit"], (1.0, ""))
    axes.set_title(panel["title"] + (f" [{unit}]" if unit else ""), fontsize=8, loc="left")
    axes.tick_params(labelsize=6)
    lines = [line for target in panel["targets"] for line in _lines(target, url, span)]
    if panel["type"] == "stat":
        axes.axis("off")
        values = [f"{points[-1][1] * factor:.4g}  {legend}".rstrip() for legend, points in lines]
        axes.text(0, 0.45, "\n".join(values) or "no data", fontsize=9 if lines and lines[0][0] else 18, va="center")
        return
    if panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal" and lines:
        times = sorted({at for _, points in lines for at, _ in points})
        heights = [[dict(points).get(at, 0.0) * factor for at in times] for _, points in lines]
        axes.stackplot([at - times[-1] for at in times], heights, labels=[legend for legend, _ in lines], alpha=0.6)
    else:
        for legend, points in lines:
            color = COLORS[POOLS[legend]][0] if legend in POOLS else None
            axes.plot(
                [at - points[-1][0] for at, _ in points],
                [v * factor for _, v in points],
                lw=1,
                label=legend,
                color=color,
            )
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    if any(legend for legend, _ in lines):
        axes.legend(*(part[:MOST_LINES] for part in axes.get_legend_handles_labels()), fontsize=6, loc="upper left")


def _lines(target: dict[str, Any], url: str, span: tuple[float, float]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Legend and points of each series; what is no number is left out, as Grafana leaves it out."""
    start, end = span
    step = max(1.0, (end - start) / POINTS)
    query = target["expr"].replace("$__rate_interval", f"{max(15, round(4 * step))}s")
    asked = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{asked}", timeout=30) as reply:
        found = json.load(reply)["data"]["result"]
    lines = []
    for one in found:
        legend = target["legendFormat"]
        for label, value in one["metric"].items():
            legend = legend.replace("{{" + label + "}}", value)
        points = [(float(at), float(value)) for at, value in one["values"] if value not in ("NaN", "+Inf", "-Inf")]
        if points:
            lines.append((legend, points))
    return lines


if __name__ == "__main__":
    draw(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
