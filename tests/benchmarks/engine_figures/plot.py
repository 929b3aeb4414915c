"""Decode rates as bars: one group per batch size, one bar per engine, one panel per model."""

from pathlib import Path

from loadgen.report.palette import COLORS
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.goals import ENGINES, OURS_BF16, OURS_INT8, OURS_INT8_KV, OURS_PLAIN, OURS_TORCH

_OURS = {
    OURS_BF16: COLORS["blue"][0],
    OURS_INT8: "#0b3d66",
    OURS_INT8_KV: "#0a2237",
    OURS_PLAIN: "#5a9bd0",
    OURS_TORCH: "#9ec9e8",
}
_PEERS = tuple(COLORS[name][shade] for shade in (0, 1) for name in ("orange", "red", "green", "violet", "grey"))


def plot(book: Book, path: Path, caption: str) -> None:
    """Draw what a book holds of decoding."""
    import matplotlib  # imported only when a plot is drawn

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "engine-figures"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    shapes = [shape for shape in book.shapes() if shape.phase == "decode"]
    models = sorted({shape.model for shape in shapes}, key=lambda model: (model != "small", model))
    if not models:
        raise ValueError("there is no decode rate to plot")
    widths = [sum(shape.model == model for shape in shapes) for model in models]
    figure, panels = pyplot.subplots(1, len(models), figsize=(12.8, 4.2), squeeze=False, width_ratios=widths)
    for panel, model in zip(panels[0], models, strict=True):
        bars(panel, book, [shape for shape in shapes if shape.model == model])
        panel.set_title(f"decode, checkpoint “{model}”", fontsize=10)
    panels[0][0].set_ylabel("tokens per second, whole batch")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, fontsize=8, frameon=False)
    figure.text(0.5, 0.01, caption, ha="center", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 0.88))
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def bars(panel: "matplotlib.axes.Axes", book: Book, shapes: list[Shape]) -> None:  # type: ignore[name-defined] # noqa: F821 # imported late
    """Groups of bars for the shapes of one model."""
    engines = [name for name in ENGINES if any(book.best(name, shape) is not None for shape in shapes)]
    width = 0.86 / max(1, len(engines))
    peers = iter(_PEERS)
    for place, engine in enumerate(engines):
        colour = _OURS.get(engine) or next(peers)
        rates = [book.best(engine, shape) or 0.0 for shape in shapes]
        left = [group - 0.43 + (place + 0.5) * width for group in range(len(shapes))]
        drawn = panel.bar(left, rates, width * 0.94, label=engine, color=colour)
        panel.bar_label(drawn, [f"{rate:,.0f}" if rate else "" for rate in rates], fontsize=5, padding=1)
    panel.set_xticks(range(len(shapes)), [f"batch {shape.size}" for shape in shapes])
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_ylim(bottom=0)
