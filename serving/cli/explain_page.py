"""Timelines of requests as a page: a bar chart for each request, and its parts as a table."""

import time
from collections.abc import Sequence

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key
from loadgen.report.fragments import Html, element, tile
from loadgen.report.page import Page, render, tiles
from loadgen.report.table import Table, columns, html_table, table_of, terminal_table
from serving.gateway.api.pages.requests_page import GROUPS
from serving.gateway.core.timeline import ChoiceLine, RequestTimes, TimePart, seconds_by_kind
from serving.terminal import table_console
from serving.version import VERSION

_KEY = {kind: number for number, (_, _, _, kinds) in enumerate(GROUPS) for kind in kinds}
_LANE_PX = 26


def explain_page(found: Sequence[RequestTimes]) -> str:
    """The page's text."""
    page = Page(
        "Where the time of requests went",
        footnote="Durations are measured where they happen, by that host's own clock; the clocks of two hosts are "
        "never compared.",
    )
    page.body.append(element("h1", page.title))
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
        element("p", head_line(times, ", ")),
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


# Timelines of requests in a terminal, and the texts that the page also uses.

MOST_ROWS = 60
"""Parts of a choice that are listed individually; beyond that they are summed by kind."""
_SHOWN_S = 1e-6
"""Shorter parts are noise of the clocks; the sum counts them."""


def head_line(times: RequestTimes, apart: str = "  ") -> str:
    """One line: arrival, duration, outcome, size; `apart` is between the first three."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(times.arrived))
    facts = [
        f"{times.prompt_tokens} prompt tokens",
        f"{times.tokens} output tokens",
        f"ended by {times.outcome}" if not times.failed else f"{times.outcome}: {times.reason or 'the client left'}",
    ]
    first = times.choices[0].first_token_s if times.choices else None
    if first is not None:
        facts.append(f"first token after {numbers.duration(first)}")
    if times.resumed:
        facts.append("resumed once" if times.resumed == 1 else f"resumed {times.resumed} times")
    return apart.join((at, numbers.duration(times.total_s), ", ".join(facts)))


def details(part: TimePart) -> str:
    """Remarks on a part: place, amount, rate, duration on real NPUs, and times of its sessions."""
    found = []
    if part.source and part.nbytes:
        found.append(f"{part.source} → {part.host}")
    elif part.host:
        found.append(part.host)
    if part.replica:
        found.append(part.replica)
    if part.tokens:
        found.append(f"{part.tokens} token{'s' * (part.tokens != 1)}")
    if part.frames > 1:
        found.append(f"{part.frames} frames")
    if part.nbytes:
        rate = f" at {numbers.size(int(part.nbytes / part.seconds))}/s" if part.seconds > 0 else ""
        found.append(f"{numbers.size(part.nbytes)}{rate}")
    if part.predicted_s:
        found.append(f"real NPUs: {numbers.duration(part.predicted_s)}")
    if part.sessions.rounds:
        stages = (f"{name} {numbers.duration(seconds)}" for name, seconds in part.sessions.parts.items())
        found.append(f"sessions: {', '.join(stages)}")
    return ", ".join(found)


def choice_table(choice: ChoiceLine, total_s: float) -> Table:
    """Parts of a choice in order; if there are very many, their sums by kind."""
    note = f"{len(choice.parts)} parts; their sum is {numbers.duration(sum(part.seconds for part in choice.parts))}."
    if len(choice.parts) <= MOST_ROWS:
        rows = [
            (part.kind, numbers.duration(part.start_s), numbers.duration(part.seconds), _share(part.seconds, total_s),
             details(part))
            for part in choice.parts
            if part.seconds >= _SHOWN_S
        ]  # fmt: skip
        return table_of(
            columns("part", "begins", "takes", "share", "where and what", text=("where and what",)), rows, note
        )
    sums = [
        (kind, numbers.duration(seconds), _share(seconds, total_s))
        for kind, seconds in seconds_by_kind(choice.parts).items()
    ]
    return table_of(columns("part", "takes", "share"), sums, note)


def print_times(times: RequestTimes) -> None:
    """Print one request to standard output."""
    console = table_console()
    console.print(f"{times.request_id}\n  {head_line(times)}\n  {times.cause}", markup=False, highlight=False)
    for choice in times.choices:
        if len(times.choices) > 1:
            console.print(f"  choice {choice.index}: {choice.tokens} tokens", markup=False, highlight=False)
        table = choice_table(choice, times.total_s)
        console.print(terminal_table(table, console.width))
        console.print(f"  {table.note}", markup=False, highlight=False)
    console.print()


def _share(seconds: float, total_s: float) -> str:
    return numbers.share(seconds / total_s) if total_s > 0 else ""
