"""One run of the autoscaler over time: the load, the NPUs of each pool, and how well the promises were kept."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from serving.virtual.result import SimResult
from tests.benchmarks.autoscaling.loads import Load
from tests.benchmarks.autoscaling.trial import good_requests

_WINDOWS = 120


def write_plot(path: Path, load: Load, result: SimResult, static_npus: int | None) -> None:
    """Draw it.

    Args:
        static_npus: of the best static split, for comparison; None = there is none.
    Effects: writes an SVG, or what the path's ending says; the same run gives the same bytes.
    """
    mpl.rcParams["svg.hashsalt"] = "autoscaler"
    rows = result.requests
    arrivals = np.array(rows.arrival_s)
    end_s = float(arrivals[-1])
    edges = np.linspace(0.0, end_s, _WINDOWS + 1)
    middles, width_s = (edges[1:] + edges[:-1]) / 2 / 3600, edges[1]
    sums = {
        name: np.histogram(arrivals, edges, weights=np.array(column))[0] / width_s
        for name, column in (("prompt", rows.prompt_tokens), ("output", rows.output_tokens))
    }
    in_time, fast = good_requests(load, result)
    with np.errstate(invalid="ignore"):
        kept = np.histogram(arrivals, edges, weights=(in_time & fast).astype(float))[0]
        share = 100 * kept / np.histogram(arrivals, edges)[0]
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 3, 1.5))
    for name, color in (("prompt", "#2563eb"), ("output", "#7c3aed")):
        top.plot(middles, sums[name] / 1000, color=color, label=f"{name} tokens")
    top.set_ylabel("asked, 1,000 tokens/s")
    points = [point for point in result.timeline if point.at_s <= end_s]
    hours = [point.at_s / 3600 for point in points]
    middle.stackplot(
        hours,
        [point.decode_npus for point in points], [point.prefill_npus for point in points],
        [point.starting_npus for point in points],
        labels=("decode", "prefill", "starting"), colors=("#7c3aed", "#2563eb", "#f59e0b"), step="post",
    )  # fmt: skip
    if static_npus is not None:
        middle.axhline(static_npus, color="#dc2626", linestyle="--", label=f"best static split: {static_npus}")
    middle.set_ylabel("NPUs")
    bottom.plot(middles, share, color="#16a34a")
    bottom.axhline(100 * load.config.slo.attainment, color="#dc2626", linestyle="--")
    bottom.set_ylim(min(90.0, float(np.nanmin(share)) - 1), 100.5)
    bottom.set_ylabel("% within both promises")
    bottom.set_xlabel("hours of virtual time")
    for axis in (top, middle):
        axis.set_ylim(0, 1.2 * axis.get_ylim()[1])  # the legend has a place of its own
        axis.legend(loc="upper right", fontsize="small", ncols=4, frameon=False)
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
