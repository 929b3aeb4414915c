"""Requests as bars over time: who waited where. Many requests are thinned evenly, so that the picture stays fair."""

from collections.abc import Sequence

from loadgen.record import RequestRecord
from loadgen.report.chart import WaterfallChart, compact, compact_all
from loadgen.run_report.names import outcome_kind, outcome_title
from loadgen.run_report.run_charts import TIME_GROUP

MAX_ROWS = 240


def waterfall_chart(records: Sequence[RequestRecord], *, max_rows: int = MAX_ROWS) -> WaterfallChart | None:
    """Bars of the measured requests in the order of their intended times; None if there are none.

    Why evenly thinned: picking the slow or failed ones would make every run look bad, picking the first ones would hide
    what happens late.
    """
    measured = sorted(
        (record for record in records if not record.warmup), key=lambda record: (record.intended_s, record.index)
    )
    if not measured:
        return None
    rows = thin(measured, max_rows)
    chunks = [record.chunks() for record in rows]
    return WaterfallChart(
        id="waterfall",
        title="Requests over time",
        note=_note(len(rows), len(measured)),
        group=TIME_GROUP,
        names=[f"{record.index}.{record.turn}" for record in rows],
        outcomes=[outcome_title(record.outcome) for record in rows],
        kinds=[outcome_kind(record.outcome) for record in rows],
        intended_s=[compact(record.intended_s) or 0.0 for record in rows],
        released_s=[compact(record.released_s) or 0.0 for record in rows],
        started_s=compact_all(record.started_s for record in rows),
        first_s=compact_all(times[0] if times else None for times in chunks),
        last_s=compact_all(times[-1] if times else None for times in chunks),
        ended_s=compact_all(record.ended_s for record in rows),
        input_tokens=[record.input_tokens for record in rows],
        output_tokens=[record.output_tokens for record in rows],
        cached_tokens=[record.cached_tokens for record in rows],
    )


def thin(items: Sequence[RequestRecord], limit: int) -> list[RequestRecord]:
    """At most `limit` items at even distances, the first one among them."""
    if len(items) <= limit:
        return list(items)
    return [items[position * len(items) // limit] for position in range(limit)]


def _note(shown: int, measured: int) -> str:
    """How many of how many."""
    order = "one row each, in the order of their intended times."
    if shown == measured:
        return f"All {measured:,} measured requests, {order}"
    return f"{shown:,} of {measured:,} measured requests, evenly picked, {order}"
