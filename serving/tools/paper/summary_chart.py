"""One picture of all rows: ours over published, a lane for each experiment, with the band of 5 %. SVG, pure.

The page embeds the same drawing with the page's colours; the standalone file includes its own.
"""

import math
import re
from collections.abc import Sequence

from hardware.cost.published import RowKind
from loadgen.report.fragments import Html, html
from loadgen.report.page import stylesheet
from serving.tools.paper import paper_tables
from serving.tools.paper.experiment import CLOSE, Row
from serving.tools.paper.reproduction import UNEXPLAINED, Reproduced, Reproduction

WIDTH = 960
_LEFT, _RIGHT, _TOP, _LANE, _BOTTOM = 330, 90, 84, 22, 34
_LABEL_PX = 34
"""Width of a tick's label with a gap."""
_TICKS = (-0.8, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_LINEAR = 0.03
"""Errors below this are drawn about evenly, larger ones by their logarithm: the band stays wide, far rows in view."""
_LETTERS = 46
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif'


def summary_svg(done: Reproduction) -> Html:
    """The drawing, with colours by the page's variables."""
    lanes = [part for part in done.parts if any(row.error is not None for row in part.findings.rows)]
    height = _TOP + _LANE * len(lanes) + _BOTTOM
    place = _scale([row.error for part in lanes for row in part.findings.rows if row.error is not None])
    title = html(f"Ours over published, every row: {done.score.text}.")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-size="12">',
        f"<title>{title}</title>",
        *_frame(lanes, place, height),
    ]
    for lane, part in enumerate(lanes):
        parts += _lane(part, _TOP + _LANE * (lane + 0.5), place)
    return Html("\n".join([*parts, *_legend(done), "</svg>"]))


def summary_file(done: Reproduction) -> bytes:
    """The drawing as a file of its own, for light and dark pages."""
    css = stylesheet()
    light, dark = (
        re.sub(r"\s+", " ", found.group(1)).strip()
        for found in (
            re.search(r":root \{(.*?)\}", css, re.DOTALL),
            re.search(r':root\[data-theme="dark"\] \{(.*?)\}', css, re.DOTALL),
        )
        if found is not None
    )
    style = (
        f"<style>svg {{ {light} font-family: {_FONT}; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
        f'<rect width="100%" height="100%" rx="10" fill="var(--card)"/>'
    )
    head, _, rest = summary_svg(done).partition("</title>")
    return f"{head}</title>\n{style}{rest}\n".encode()


class _Place:
    """From an error to a position across.

    Args:
        low, high: errors at the left and the right edge.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high
        self._from = _bent(low)
        self._scale = (WIDTH - _LEFT - _RIGHT) / (_bent(high) - self._from)

    def x(self, error: float) -> float:
        """Position, to a tenth of a pixel."""
        return round(_LEFT + (_bent(error) - self._from) * self._scale, 1)

    def ticks(self) -> list[float]:
        """Errors that are named below, from the middle outwards as far as their labels have room."""
        kept: list[float] = []
        for tick in sorted(_TICKS, key=abs):
            fits = self.low <= tick <= self.high
            if fits and all(abs(self.x(tick) - self.x(other)) >= _LABEL_PX for other in kept):
                kept.append(tick)
        return sorted(kept)


def _bent(error: float) -> float:
    return math.copysign(math.log1p(abs(error) / _LINEAR), error)


def _scale(errors: Sequence[float]) -> _Place:
    """A range with all errors and some room, never narrower than 10 % to each side."""
    known = [error for error in errors if math.isfinite(error)]
    return _Place(1.2 * min(-0.1, *known, 0.0), 1.2 * max(0.1, *known, 0.0))


def _frame(lanes: Sequence[Reproduced], place: _Place, height: int) -> list[str]:
    """Band, grid, names and how many rows of each lane are in the band."""
    bottom = height - _BOTTOM
    left, right = place.x(-CLOSE), place.x(CLOSE)
    parts = [
        f'<rect x="{left}" y="{_TOP}" width="{right - left:.1f}" height="{bottom - _TOP}" fill="var(--green)" '
        f'fill-opacity="0.14"/>'
    ]
    for tick in place.ticks():
        x = place.x(tick)
        color = "faint" if tick == 0 else "grid"
        parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="var(--{color})"/>')
        name = f"{tick:+.0%}".replace("-", "−") if tick else "equal"
        parts.append(
            f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="var(--soft)" font-size="11">{name}</text>'
        )
    caption = "ours against published"
    parts.append(f'<text x="{_LEFT - 12}" y="{bottom + 16}" text-anchor="end" fill="var(--soft)">{caption}</text>')
    for lane, part in enumerate(lanes):
        y = _TOP + _LANE * (lane + 0.5)
        rows = [row for row in part.findings.rows if row.error is not None]
        close = sum(row.within(CLOSE) for row in rows)
        title = part.experiment.title
        shown = title if len(title) <= _LETTERS else f"{title[:_LETTERS]}…"
        parts += [
            f'<line x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}" stroke="var(--grid)"/>',
            f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" fill="var(--ink)">{html(shown)}</text>',
            f'<text x="{WIDTH - _RIGHT + 12}" y="{y + 4}" fill="var(--soft)">{close} of {len(rows)}</text>',
        ]
    return parts


def _lane(part: Reproduced, y: float, place: _Place) -> list[str]:
    """A point for each row, with a tooltip; the least meaningful ones below the others."""
    rows = [row for row in part.findings.rows if row.error is not None and math.isfinite(row.error)]
    return [
        _point(part, row, y, place)
        for row in sorted(rows, key=lambda row: (row.kind is RowKind.PREDICTED, bool(part.reason(row))))
    ]


def _point(part: Reproduced, row: Row, y: float, place: _Place) -> str:
    assert row.error is not None
    reason, predicted = part.reason(row), row.kind is RowKind.PREDICTED
    color = "red" if reason == UNEXPLAINED else "orange" if reason else "blue" if predicted else "grey"
    fill = f"var(--{color})" if predicted else "var(--card)"
    said = (
        f"{row.label}: published {paper_tables.published_text(row)}, ours {paper_tables.ours_text(row)} {row.unit} "
        f"({paper_tables.error_text(row)}, {row.how_text})"
    )
    return (
        f'<circle cx="{place.x(row.error)}" cy="{y}" r="4" fill="{fill}" fill-opacity="0.8" stroke="var(--{color})" '
        f'stroke-width="1.5"><title>{html(said)}</title></circle>'
    )


def _legend(done: Reproduction) -> list[str]:
    """Meaning of the points, and the score; above the lanes."""
    score = done.score
    aside = f"apart from these, within 5 %: {score.aside}" if score.aside else ""
    names = [
        ("blue", True, "predicted"),
        ("grey", False, "fitted, derived or read back"),
        ("orange", True, "missed, with a reason"),
    ]
    if score.unexplained:
        names.append(("red", True, UNEXPLAINED.lower()))
    parts = [
        f'<text x="16" y="24" fill="var(--ink)" font-size="14" font-weight="600">{html(score.headline)}</text>',
        f'<text x="16" y="44" fill="var(--soft)">{html(aside)}</text>',
    ]
    x = 22
    for color, filled, name in names:
        fill = f"var(--{color})" if filled else "var(--card)"
        parts.append(f'<circle cx="{x}" cy="63" r="4" fill="{fill}" stroke="var(--{color})" stroke-width="1.5"/>')
        parts.append(f'<text x="{x + 10}" y="67" fill="var(--soft)">{html(name)}</text>')
        x += 34 + 7 * len(name)
    parts.append(f'<text x="{WIDTH - _RIGHT + 12}" y="67" fill="var(--soft)">within 5 %</text>')
    return parts
