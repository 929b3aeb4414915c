"""How every plot looks, and how a matplotlib figure becomes SVG that can stand inside a page.

The SVG is static text: same figure, same bytes; no script, no font, no address. Colours are names; they are written
as CSS variables with a fallback, so one drawing follows the page's light or dark theme and still works by itself.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

PALETTE = {
    "ink": "#1c2126",
    "soft": "#5c656e",
    "line": "#d3d6d0",
    "grid": "#ecede9",
    "card": "#fefefe",
    "blue": "#2563c9",
    "orange": "#c2620c",
    "green": "#1b8a5a",
    "red": "#c92a3a",
    "violet": "#7a4fc4",
    "grey": "#7b838b",
}
"""Fallbacks, for light pages; each is used for one name only, because it is found again by its value."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
FONT_PX = 11
TITLE_PX = 12.5
LEFT_PX, RIGHT_PX = 54, 28
_POINTS_PER_INCH = 72

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cloudmatrix",
    "font.family": "DejaVu Sans",
    "font.size": FONT_PX,
    "text.color": PALETTE["ink"],
    "text.parse_math": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": PALETTE["line"],
    "axes.labelcolor": PALETTE["soft"],
    "axes.labelsize": FONT_PX,
    "axes.linewidth": 1.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.unicode_minus": True,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 1.0,
    "xtick.color": PALETTE["line"],
    "ytick.color": PALETTE["line"],
    "xtick.labelcolor": PALETTE["soft"],
    "ytick.labelcolor": PALETTE["soft"],
    "xtick.labelsize": FONT_PX,
    "ytick.labelsize": FONT_PX,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
    "legend.frameon": False,
    "legend.fontsize": FONT_PX,
    "legend.labelcolor": PALETTE["soft"],
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The look of every plot; figures are made and written inside."""
    with mpl.rc_context(_STYLE):
        yield


def panel(
    width: int, height: int, title: str, *, left: int = LEFT_PX, right: int = RIGHT_PX, top: int = 46, bottom: int = 28
) -> tuple[Figure, Axes]:
    """A figure with one plot.

    Args:
        width, height: of the figure; left .. bottom: what is kept free around the plot [px at full size].
    """
    figure = Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH)
    FigureCanvasSVG(figure)
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
    figure.text(8 / width, 1 - 6 / height, title, fontsize=TITLE_PX, fontweight="bold", va="top", ha="left")
    return figure, axes


def legend(figure: Figure, axes: Axes) -> None:
    """Names of the curves in one row under the title; nothing to tell apart, no legend."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return
    figure.legend(
        handles, names, loc="upper left", bbox_to_anchor=(0.015, 1 - 24 / _height(figure)), ncols=len(names),
        borderpad=0, borderaxespad=0, handlelength=1.2, handletextpad=0.5, columnspacing=1.2,
    )  # fmt: skip


def empty(axes: Axes, text: str = "nothing to show") -> None:
    """Say so instead of drawing an empty plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=PALETTE["soft"])


def to_svg(figure: Figure, prefix: str, label: str, tooltips: Mapping[str, str] | None = None) -> str:
    """A figure as one `<svg>` element.

    Args:
        prefix: put before every id, so that several drawings can stand in one page.
        label: what a screen reader says.
        tooltips: group id (matplotlib's gid) -> text that is shown when it is pointed at.
    """
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"font: (?:(\d+) )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    for name, value in PALETTE.items():
        text = text.replace(value, f"var(--{name}, {value})")
    for group, words in (tooltips or {}).items():
        mark = f'id="{prefix}-{group}">'
        text = text.replace(mark, f"{mark}<title>{escape(words)}</title>", 1)
    width, height = (round(inches * _POINTS_PER_INCH) for inches in figure.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(label)}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="font-family: {FONT}">'
    )
    return head + text[text.index(">") + 1 :].strip() + "\n"


def _font(found: re.Match[str]) -> str:
    """Size and weight of a text; the family is the whole drawing's."""
    weight = f"font-weight: {found[1]}; " if found[1] else ""
    return f"{weight}font-size: {found[2]}px"


def _height(figure: Figure) -> float:
    return float(figure.get_size_inches()[1]) * _POINTS_PER_INCH
