"""Timelines of requests as a page: a bar chart for each request, and its parts as a table."""

from collections.abc import Sequence

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key
from loadgen.report.fragments import Html, element, tile
from loadgen.report.html import render
from loadgen.report.page import Page, tiles
from loadgen.report.table import html_table
from serving.cli.explain_text import choice_table, details, head_line
from serving.gateway.core import timeline as t
from serving.gateway.core.causes import seconds_by_kind
from serving.gateway.core.timeline import RequestTimes
from serving.version import VERSION

GROUPS: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (
    ("at the gateway", "grey", 1.0, (t.TOKENIZING, t.WAITING, t.ROUTING, t.WRITING, t.OTHER_CHOICES)),
    ("waiting at an instance", "orange", 1.0, (t.INSTANCE_QUEUE, t.STEP_WAIT, t.OTHER_STEPS, t.BETWEEN)),
    ("KV moved", "green", 1.0, (t.POOL_GET, t.CHECKSUMS, t.HANDOFF)),
    ("prefill", "prefill", 1.0, (t.PREFILL,)),
    ("decode", "decode", 1.0, (t.DECODE,)),
    ("network and frames", "grey", 0.5, (t.NETWORK, t.NO_NEWS)),
    ("resumed", "red", 1.0, (t.RESUMING,)),
)
"""Kinds of parts with a common colour: name, colour, opacity."""
_KEY = {kind: number for number, (_, _, _, kinds) in enumerate(GROUPS) for kind in kinds}
_LANE_PX = 26


def explain_page(found: Sequence[RequestTimes]) -> str:
    """The page's text."""
    page = Page(
        "Where the time of requests went",
        footnote="Durations are measured where they happen, by that host's own clock; the clocks of two hosts are "
        "never compared.",
    )
    if not found:
        page.add("none", "No requests", element("p", "No such request has finished since the gateways started."))
    for number, times in enumerate(found):
        page.add(f"request-{number}", times.request_id, *_request(page, number, times), short=_short(times))
    return render(page, f"cloudmatrix {VERSION}")


def _short(times: RequestTimes) -> str:
    return numbers.duration(times.total_s)


def _request(page: Page, number: int, times: RequestTimes) -> list[object]:
    largest = list(seconds_by_kind(times.choices[0].parts).items())[:4] if times.choices else []
    parts: list[object] = [
        element("p", head_line(times)),
        tiles([_tile(kind, seconds, times.total_s) for kind, seconds in largest]),
        element("p", times.cause),
        page.draw([_chart(number, times)], single=True),
    ]
    for choice in times.choices:
        table = choice_table(choice, times.total_s)
        if len(times.choices) > 1:
            parts.append(element("h3", f"Choice {choice.index}"))
        parts.append(html_table(table, tall=True))
    return parts


def _tile(kind: str, seconds: float, total_s: float) -> Html:
    figure, _, unit = numbers.duration(seconds).partition(" ")
    return tile(kind, figure, unit, [f"{numbers.share(seconds / total_s) if total_s else ''} of the whole"])


def _chart(number: int, times: RequestTimes) -> BarChart:
    bars, used = [], sorted({_KEY.get(part.kind, 0) for choice in times.choices for part in choice.parts})
    for lane, choice in enumerate(times.choices):
        for part in choice.parts:
            said = f"{part.kind}: {numbers.duration(part.seconds)}"
            more = details(part)
            key = used.index(_KEY.get(part.kind, 0))
            text = f"{said} ({more})" if more else said
            bars.append(Bar(lane, part.start_s, part.start_s + part.seconds, key, text, part.kind))
    return BarChart(
        id=f"times-{number}",
        title="Time line",
        note="From arrival to the last byte; point at a bar for its figures.",
        x=Axis(unit="s"),
        lanes=[f"#{choice.index}" for choice in times.choices],
        lane_px=_LANE_PX,
        keys=[Key(name=GROUPS[key][0], color=GROUPS[key][1], alpha=GROUPS[key][2]) for key in used],
        bars=bars,
    )
