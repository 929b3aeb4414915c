"""Draws a recorded run as one self-contained SVG: SMIL animates it, so that it also moves in an `<img>`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from docs.printed.animation.story import Story, Timeline, story_of
from loadgen.report.palette import COLORS, POOLS

# Values that change over the loop: an attribute with its SMIL animation, or its value at one moment.

Steps = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Motion:
    """The loop. Args: end_s: its length. at_s: the single moment to draw; None = all of it, animated."""

    end_s: float
    at_s: float | None = None

    def steps(self, attribute: str, steps: Steps) -> tuple[str, str]:
        """An attribute that changes in steps.

        Args:
            steps: ascending moments, each with the value from then on; the first one is also the initial value.
        Returns: the attribute, and the content of the element.
        """
        kept = [step for place, step in enumerate(steps) if not place or step[1] != steps[place - 1][1]]
        value = kept[0][1]
        if self.at_s is not None:
            now = [one for at, one in kept if at <= self.at_s]
            return f'{attribute}="{now[-1] if now else value}"', ""
        if len(kept) == 1:
            return f'{attribute}="{value}"', ""
        times = [0.0, *(at / self.end_s for at, _ in kept[1:])]
        return f'{attribute}="{value}"', self._animate(attribute, [one for _, one in kept], times, "discrete")

    def line(self, attribute: str, points: Sequence[tuple[float, float]]) -> tuple[str, str]:
        """An attribute that changes linearly between moments; the first is 0, the last the loop's end."""
        if self.at_s is not None:
            return f'{attribute}="{number(_between(points, self.at_s))}"', ""
        values, times = [number(value) for _, value in points], [at / self.end_s for at, _ in points]
        return f'{attribute}="{values[0]}"', self._animate(attribute, values, times, "linear")

    def blink(self, values: str, period_s: float) -> str:
        """Opacity that alternates all the time; constant in a still picture."""
        if self.at_s is not None:
            return ""
        return (
            f'<animate attributeName="opacity" values="{values}" dur="{number(period_s)}s" repeatCount="indefinite"/>'
        )

    def shown(self, since_s: float, until_s: float | None = None) -> tuple[str, str]:
        """Opacity of an element visible from one moment to another, or to the end."""
        steps = [(0.0, "0"), (since_s, "1")] if since_s > 0 else [(0.0, "1")]
        return self.steps("opacity", [*steps, *([(until_s, "0")] if until_s is not None else [])])

    def _animate(self, attribute: str, values: Sequence[str], times: Sequence[float], mode: str) -> str:
        keys = ";".join(f"{min(max(time, 0.0), 1.0):.4f}".rstrip("0").rstrip(".") for time in times)
        return (
            f'<animate attributeName="{attribute}" calcMode="{mode}" values="{";".join(values)}" keyTimes="{keys}" '
            f'dur="{number(self.end_s)}s" repeatCount="indefinite"/>'
        )


def number(value: float) -> str:
    """A number with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    for (start, low), (end, high) in itertools.pairwise(points):
        if start <= at <= end:
            return low + (high - low) * (at - start) / ((end - start) or 1.0)
    return points[-1][1] if at > points[-1][0] else points[0][1]


# Draws a recorded run as one self-contained SVG: SMIL animates it, so that it also moves in an `<img>`.

WIDTH, HEIGHT = 860, 414
LEFT, TOP = 24, 36
ADVANCE, LINE_PX = 7.8, 18
"""Width of a character at 13 px, and height of a line of text."""
RIGHT = 556
SQUARE, GAP = 28, 6.6
COLUMNS = 8
PLOT_TOP, PLOT_HEIGHT = 178, 70
PLOT_WIDTH = COLUMNS * SQUARE + (COLUMNS - 1) * GAP
CAPTION_TOP = 282
_NAMES = (("p", "prefill"), ("d", "decode"), ("x", "dead"), ("i", "idle"))
_LIGHT, _DARK = (
    f"--p:{COLORS[POOLS['prefill']][dark]};--d:{COLORS[POOLS['decode']][dark]};--x:{COLORS['red'][dark]}"
    for dark in (False, True)
)
_GROUND = f"""
svg{{--card:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;{_LIGHT};--i:#e6eaef}}
@media(prefers-color-scheme:dark){{svg{{--card:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;{_DARK};--i:#262c36}}}}
"""
_STYLE = (
    _GROUND
    + """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink);
white-space:pre}
.s,.k{fill:var(--soft);font-size:12px}.k{fill:var(--ink)}.c{font-weight:600}.card{fill:var(--card);stroke:var(--line)}
.p{fill:var(--p)}.d{fill:var(--d)}.x{fill:none;stroke:var(--x);stroke-width:2.4;stroke-linecap:round}.i{fill:var(--i)}
.rate{fill:none;stroke:var(--d);stroke-width:2;stroke-linejoin:round}.area{fill:var(--d);opacity:.14}.axis{stroke:var(--line)}
.kill{stroke:var(--x);stroke-width:1.5;stroke-dasharray:4 3}.q{fill:var(--p)}.r{fill:var(--x)}
"""
)


def draw(timeline: Timeline, at_s: float | None = None) -> str:
    """The SVG. Args: at_s: draw this one moment, still; None = the whole loop."""
    story = story_of(timeline)
    motion = Motion(story.end_s, at_s)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>A stream goes on after kill -9 of the instance that generates it, then the pool grows</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        *_answer(timeline, story, motion),
        *_npus(story, motion),
        *_rates(story, motion),
        *_captions(story, motion),
        _progress(motion),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, css: str = "") -> str:
    """Text of a fixed width, independent of the font."""
    size = ADVANCE * (12 / 13 if css in ("s", "k") else 1)
    name = f' class="{css}"' if css else ""
    return (
        f'<text{name} x="{number(x)}" y="{number(y)}" textLength="{number(len(text) * size)}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
    )


def _answer(timeline: Timeline, story: Story, motion: Motion) -> list[str]:
    """The question, and the response line by line, each uncovered as its pieces arrived."""
    opacity, inside = motion.shown(story.asked_s)
    parts = [f"<g {opacity}>{inside}{_text(LEFT, TOP, f'> {timeline.question}', 'q')}</g>"]
    for row, (start, end) in enumerate(story.lines):
        y = TOP + 26 + row * LINE_PX
        widths = [(at, number(ADVANCE * max(0, min(count - start, end - start)))) for at, count in story.counts]
        width, inside = motion.steps("width", widths)
        parts.append(
            f'<clipPath id="l{row}"><rect x="{LEFT}" y="{y - 14}" height="{LINE_PX}" {width}>{inside}</rect></clipPath>'
        )
        parts.append(f'<g clip-path="url(#l{row})">{_text(LEFT, y, story.text[start:end])}</g>')
    return [*parts, _cursor(story, motion)]


def _cursor(story: Story, motion: Motion) -> str:
    """A block after the latest character."""
    places = []
    for at, count in story.counts:
        row = max(place for place, (start, _) in enumerate(story.lines) if start <= count or not place)
        start, end = story.lines[row]
        places.append((at, LEFT + ADVANCE * min(count - start, end - start) + 1, TOP + 26 + row * LINE_PX - 11))
    x, move_x = motion.steps("x", [(at, number(x)) for at, x, _ in places])
    y, move_y = motion.steps("y", [(at, number(y)) for at, _, y in places])
    opacity, inside = motion.shown(story.asked_s)
    blink = motion.blink("1;1;.15;.15", 0.9)
    return f'<g {opacity}>{inside}<rect class="d" width="7" height="14" {x} {y}>{move_x}{move_y}{blink}</rect></g>'


def _npus(story: Story, motion: Motion) -> list[str]:
    """A square for each NPU, coloured by pool, crossed out when its instance is dead; and a legend."""
    count = len(story.npus[0][1])
    parts = [_text(RIGHT, TOP, f"{count} virtual NPUs", "s")]
    for npu in range(count):
        x, y = RIGHT + npu % COLUMNS * (SQUARE + GAP), TOP + 12 + npu // COLUMNS * (SQUARE + GAP)
        place = f'x="{number(x)}" y="{number(y)}" width="{SQUARE}" height="{SQUARE}" rx="5"'
        parts.append(f'<rect class="i" {place}/>')
        letters = [(at, one[npu]) for at, one in story.npus]
        for letter in sorted({letter for _, letter in letters} - {"."}):
            opacity, inside = motion.steps("opacity", [(at, str(int(one == letter))) for at, one in letters])
            if letter == "x":
                shape = f"<g>{motion.blink('1;.3;1', 0.5)}{_cross(x, y)}</g>"
            else:
                shape = f'<rect class="{letter}" {place}>{motion.blink("1;.78;1", 1.3)}</rect>'
            parts.append(f"<g {opacity}>{inside}{shape}</g>")
    x = float(RIGHT)
    for letter, name in _NAMES:
        y = TOP + 12 + 2 * (SQUARE + GAP) + 8
        sign = (
            _cross(x, y, 10)
            if letter == "x"
            else f'<rect class="{letter}" x="{number(x)}" y="{number(y)}" width="10" height="10" rx="2"/>'
        )
        parts += [sign, _text(x + 15, y + 9, name, "s")]
        x += 15 + len(name) * 7.2 + 17
    return parts


def _cross(x: float, y: float, size: float = SQUARE) -> str:
    inset = size / 5
    a, b, c, d = (number(value) for value in (x + inset, y + inset, x + size - inset, y + size - inset))
    place = f'x="{number(x + 1)}" y="{number(y + 1)}" width="{size - 2}" height="{size - 2}"'
    frame = f'<rect class="x" {place} rx="4"/>' if size == SQUARE else ""
    return f'{frame}<path class="x" d="M{a} {b}L{c} {d}M{c} {b}L{a} {d}"/>'


def _rates(story: Story, motion: Motion) -> list[str]:
    """Tokens per second of all streams over time, with the kill."""
    most = max(rate for _, rate in story.rates)
    points = [
        (RIGHT + at / story.end_s * PLOT_WIDTH, PLOT_TOP + PLOT_HEIGHT * (1 - rate / most)) for at, rate in story.rates
    ]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    base = PLOT_TOP + PLOT_HEIGHT
    width, inside = motion.line("width", [(0.0, 0.0), (story.end_s, PLOT_WIDTH)])
    kill = number(RIGHT + story.killed_s / story.end_s * PLOT_WIDTH)
    opacity, appears = motion.shown(story.killed_s)
    return [
        _text(RIGHT, PLOT_TOP - 14, f"tokens/s of {story.streams} streams", "s"),
        _text(RIGHT + PLOT_WIDTH - 7.2 * len(f"{most:.0f}"), PLOT_TOP - 14, f"{most:.0f}", "s"),
        f'<path class="axis" d="M{RIGHT} {base}h{number(PLOT_WIDTH)}"/>',
        f'<clipPath id="t"><rect x="{RIGHT}" y="{PLOT_TOP - 4}" height="{PLOT_HEIGHT + 8}" {width}>{inside}</rect>'
        "</clipPath>",
        f'<g clip-path="url(#t)"><path class="area" d="M{points[0][0]:.1f} {base}L{line}L{points[-1][0]:.1f} {base}z"/>'
        f'<path class="rate" d="M{line}"/></g>',
        f'<g {opacity}>{appears}<path class="kill" d="M{kill} {PLOT_TOP - 6}V{base}"/></g>',
    ]


def _captions(story: Story, motion: Motion) -> list[str]:
    """A line for each event, shown at its time."""
    parts = []
    for row, (at, text) in enumerate(story.captions):
        opacity, inside = motion.shown(at)
        css = "c r" if text.startswith("$ kill") else "c" if text.startswith("$") else "k"
        parts.append(f"<g {opacity}>{inside}{_text(RIGHT, CAPTION_TOP + row * 18, text, css)}</g>")
    return parts


def _progress(motion: Motion) -> str:
    """Progress of the loop, along the lower edge."""
    width, inside = motion.line("width", [(0.0, 0.0), (motion.end_s, WIDTH - 2 * LEFT)])
    return (
        f'<rect class="i" x="{LEFT}" y="{HEIGHT - 9}" width="{WIDTH - 2 * LEFT}" height="2" rx="1"/>'
        f'<rect class="d" x="{LEFT}" y="{HEIGHT - 9}" height="2" rx="1" {width}>{inside}</rect>'
    )
