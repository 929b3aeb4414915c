"""One stream across the loss of its replica: tokens over time, the fault, the pause, the replica of each span. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardware.faults import FaultKind
from loadgen.report import numbers
from loadgen.report.chart import Axis, Line, LineChart, Marks
from serving.faults.scenario import FROM_INSIDE
from serving.faults.schedule import GRAVE
from serving.tools.chaos.asks import StreamedAnswer
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.findings import end_of_gap, least_gap_s, stops_streams

_COLORS = ("blue", "violet", "green", "orange")


@dataclass(frozen=True, slots=True)
class Hit:
    """One fault that stopped the stream. Times since the load started [s]."""

    event: Event
    last_s: float
    """Last token before the pause; the send time of the request if there was none."""
    next_s: float
    tokens: int
    """Received before the pause."""

    @property
    def pause_s(self) -> float:
        """From the fault to the next token [s]."""
        return self.next_s - self.event.at_s


@dataclass(frozen=True, slots=True)
class HitStream:
    """The stream to draw.

    Args:
        number: index among the run's responses. sent_s: since the load started [s].
        points: time since the load started [s] and tokens received so far, at each piece.
        hits: faults that stopped it, in order of time; at least one.
        spans: names of the replicas that served it: before the first hit, after it, and so on; one more than hits.
    """

    number: int
    form: str
    sent_s: float
    points: tuple[tuple[float, int], ...]
    hits: tuple[Hit, ...]
    spans: tuple[tuple[str, ...], ...]


def drawn_stream(run: ChaosRun) -> HitStream | None:
    """The stream that best shows the effect of losing a replica: killed once, far from start and end.

    Returns: None if no whole response with one choice continued on another instance.
    """
    losses = sorted((event for event in run.events if stops_streams(event)), key=lambda event: event.at_s)
    found = [
        stream
        for number, answer in enumerate(run.answers)
        if answer.outcome == "finished" and len(answer.choices) == 1 and answer.resumptions
        if number not in run.differences
        if (stream := _across(number, answer, losses, run.begun_s)) is not None
    ]
    return max(found, key=_worth, default=None)


def _worth(stream: HitStream) -> tuple[bool, bool, int, int]:
    """Sort key: kills before freezes, one before several, then the longest shorter side, then the earliest request."""
    hit, total = stream.hits[0], stream.points[-1][1]
    one = len(stream.hits) == 1
    return hit.event.kind == "kill", one, min(hit.tokens, total - hit.tokens), -stream.number


def _across(number: int, answer: StreamedAnswer, losses: Sequence[Event], begun_s: float) -> HitStream | None:
    """A stream with its hits; None if none of the losses stopped it."""
    choice = answer.choices[0]
    totals = itertools.accumulate(count for _, count in choice.arrivals)
    points = tuple((at - begun_s, total) for (at, _), total in zip(choice.arrivals, totals, strict=True))
    sent_s = answer.sent_s - begun_s
    hits: list[Hit] = []
    spans: list[tuple[str, ...]] = []
    left = list(answer.replicas)
    for event in losses:
        if event.target not in left or not answer.sent_s <= event.at_clock_s <= answer.ended_s:
            continue
        ended = end_of_gap(choice, event.at_clock_s, least_gap_s(answer))
        if ended is None:
            continue
        before = [point for point in points if point[0] < ended - begun_s]
        last_s, tokens = before[-1] if before else (sent_s, 0)
        hits.append(Hit(event, last_s, ended - begun_s, tokens))
        place = left.index(event.target) + 1
        spans.append(tuple(left[:place]))
        left = left[place:]
    return HitStream(number, answer.ask.form, sent_s, points, tuple(hits), (*spans, tuple(left))) if hits else None


def served_by(replicas: Sequence[str]) -> str:
    """Names of replicas in order; a span without a new name was served by earlier replicas."""
    return " → ".join(replicas) or "replicas that it knew"


def stream_text(stream: HitStream) -> str:
    """Sentences that describe its history."""
    parts = [f"Request {stream.number} ({stream.form}) was sent at {numbers.clock(stream.sent_s)}."]
    for hit, after in zip(stream.hits, stream.spans[1:], strict=True):
        parts.append(
            f"{signal_of(hit.event)} hit {hit.event.target} at {numbers.clock(hit.event.at_s)}, when the client had "
            f"{hit.tokens:,} tokens; the next one came {numbers.duration(hit.pause_s)} later, from {served_by(after)}."
        )
    parts.append(f"All {stream.points[-1][1]:,} tokens are those of the undisturbed answer.")
    return " ".join(parts)


def stream_chart(stream: HitStream) -> LineChart:
    """Tokens over time: a curve for each span, so that the pause is a gap, and the fault as a vertical line."""
    edges = [hit.next_s for hit in stream.hits]
    place = [sum(at >= edge for edge in edges) for at, _ in stream.points]
    received = [(0, 0.0), *((where, float(total)) for where, (_, total) in zip(place, stream.points, strict=True))]
    lines = [
        Line(
            name=served_by(span), color=_COLORS[index % len(_COLORS)],
            values=[total if where == index else None for where, total in received],
        )
        for index, span in enumerate(stream.spans)
    ]  # fmt: skip
    marks = [
        mark
        for hit in stream.hits
        for mark in (
            Marks(name=f"{signal_of(hit.event)} to {hit.event.target}", color="red", xs=[hit.event.at_s]),
            Marks(name=f"next token, {numbers.duration(hit.pause_s)} later", color="grey", xs=[hit.next_s], dash=True),
        )
    ]
    return LineChart(
        id="stream",
        title="Tokens that the client had received",
        note="The client sees the gap between the two upright lines, but no error and no repeated token.",
        x=Axis(unit="clock", label="since the load started", low=stream.sent_s, high=stream.points[-1][0]),
        y=Axis(unit="tokens"),
        xs=[stream.sent_s, *(at for at, _ in stream.points)],
        lines=lines,
        marks=marks,
    )


def as_value(stream: HitStream) -> dict[str, Any]:
    """The same for scripts: plain values, times since the load started [s]."""
    return {
        "request": stream.number,
        "form": stream.form,
        "sent_s": round(stream.sent_s, 3),
        "hits": [
            {
                "fault": hit.event.number,
                "tokens": hit.tokens,
                "last_s": round(hit.last_s, 3),
                "next_s": round(hit.next_s, 3),
            }
            for hit in stream.hits
        ],
        "replicas": [list(span) for span in stream.spans],
        "tokens": [[round(at, 3), total] for at, total in stream.points],
    }


# Signal, or other means, of each kind of fault.

_SIGNALS = {
    **dict.fromkeys(GRAVE, "SIGKILL"),
    FaultKind.FREEZE: "SIGSTOP",
    FaultKind.FLOOD: "another tenant",
}


def signal_of(event: Event) -> str:
    """Signal that a process received, or its replacement for kinds without one."""
    return _SIGNALS.get(event.kind) or ("in the replica" if event.kind in FROM_INSIDE else "clients leave")
