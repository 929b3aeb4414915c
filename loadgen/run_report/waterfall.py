"""Requests as bars over time: where each one waited. Many requests are sampled evenly to stay representative."""

from collections.abc import Iterator, Sequence

from loadgen.record import RequestRecord
from loadgen.report.chart import Bar, BarChart, Key, compact
from loadgen.report.numbers import duration
from loadgen.run_report.names import outcome_kind, outcome_title
from loadgen.run_report.run_charts import TIME_AXIS, TIME_GROUP

MAX_ROWS = 240
KEYS = (
    Key(name="before it was sent", color="grey", alpha=0.45),
    Key(name="waiting for the first token", color="orange", alpha=0.75),
    Key(name="streaming", color="blue", alpha=0.9),
    Key(name="failed", color="red", alpha=0.9),
    Key(name="ended on purpose", color="violet", alpha=0.8),
)
_LATE, _WAITING, _STREAMING, _FAILED, _DELIBERATE = range(len(KEYS))
_ENDS = {"failed": _FAILED, "deliberate": _DELIBERATE}
_TOLD_FROM_S = 0.001
_LANE_PX = 5


def waterfall_chart(records: Sequence[RequestRecord], *, max_rows: int = MAX_ROWS) -> BarChart | None:
    """Bars of the measured requests in the order of their intended times; None if there are none.

    Evenly thinned, because selecting the slow or failed ones would make every run look bad, and selecting the first
    ones would hide late effects.
    """
    measured = sorted(
        (record for record in records if not record.warmup), key=lambda record: (record.intended_s, record.index)
    )
    if not measured:
        return None
    rows = thin(measured, max_rows)
    return BarChart(
        id="waterfall",
        title="Requests over time",
        note=_note(len(rows), len(measured)),
        group=TIME_GROUP,
        x=TIME_AXIS,
        lanes=[f"{record.index}.{record.turn}" for record in rows],
        lane_texts=[row_text(record) for record in rows],
        lane_px=_LANE_PX,
        keys=list(KEYS),
        bars=[
            Bar(lane, compact(start) or 0.0, compact(end) or 0.0, key)
            for lane, record in enumerate(rows)
            for start, end, key in _phases(record)
        ],
    )


def row_text(record: RequestRecord) -> str:
    """The text of a request's row when it is pointed at."""
    parts = [f"request {record.index}.{record.turn} {outcome_title(record.outcome)}"]
    chunks = record.chunks()
    if record.started_s is not None and record.started_s - record.intended_s >= _TOLD_FROM_S:
        parts.append(f"sent {duration(record.started_s - record.intended_s)} late")
    if chunks:
        parts.append(f"TTFT {duration(chunks[0] - record.intended_s)}, E2E {duration(chunks[-1] - record.intended_s)}")
    if record.input_tokens is not None:
        cached = f" ({record.cached_tokens:,} cached)" if record.cached_tokens else ""
        output = "?" if record.output_tokens is None else f"{record.output_tokens:,}"
        parts.append(f"{record.input_tokens:,}{cached} → {output} tokens")
    return ", ".join(parts)


def thin(items: Sequence[RequestRecord], limit: int) -> list[RequestRecord]:
    """At most `limit` items at even distances, the first one among them."""
    if len(items) <= limit:
        return list(items)
    return [items[position * len(items) // limit] for position in range(limit)]


def _phases(record: RequestRecord) -> Iterator[tuple[float, float, int]]:
    """The bar of one request as start, end and key of each part."""
    kind = outcome_kind(record.outcome)
    chunks = record.chunks()
    if record.started_s is None:
        until = record.intended_s if record.ended_s is None else record.ended_s
        yield record.intended_s, until, _FAILED if kind == "failed" else _LATE
        return
    if record.started_s > record.intended_s:
        yield record.intended_s, record.started_s, _LATE
    end = record.ended_s if record.ended_s is not None else chunks[-1] if chunks else None
    if chunks:
        yield record.started_s, chunks[0], _WAITING
        yield chunks[0], chunks[0] if end is None else end, _ENDS.get(kind, _STREAMING)
    elif end is not None:
        yield record.started_s, end, _ENDS.get(kind, _WAITING)


def _note(shown: int, measured: int) -> str:
    """Note on the number of requests shown."""
    order = "one row each, in the order of their intended times."
    if shown == measured:
        return f"All {measured:,} measured requests, {order}"
    return f"{shown:,} of {measured:,} measured requests, evenly picked, {order}"
