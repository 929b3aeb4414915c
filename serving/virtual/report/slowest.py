"""Slowest requests, with their time in queues, prefill, transfer and decode."""

from dataclasses import dataclass

import numpy as np

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key
from loadgen.report.table import Table, TableRow, columns
from serving.virtual.report.latencies import Floats, Latencies, floats
from serving.virtual.result import RequestColumns

PARTS = ("queue", "prefill", "transfer", "decode")
_COLORS = ("grey", "prefill", "green", "decode")
_SHOWN, _DRAWN = 50, 20
_LANE_PX = 20
_KINDS = ("TTFT", "TPOT", "end to end")
NOTE = (
    "Queue: until work on the prompt began. Prefill: from there to the first token, with the gateway's own time and "
    "what came from the KV-cache pool. Transfer: until a decode instance had the prompt's KV, with the wait for room "
    "there. Decode: the rest, with what had to be computed again after a loss."
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Parts of each request's time [s], in the order of `PARTS`: [requests] float64 each, nan for a missing part."""

    queue_s: Floats
    prefill_s: Floats
    transfer_s: Floats
    decode_s: Floats

    def of(self, row: int) -> tuple[float, float, float, float]:
        """Parts of one request [s]."""
        every = (self.queue_s, self.prefill_s, self.transfer_s, self.decode_s)
        queue, prefill, transfer, decode = (float(part[row]) for part in every)
        return queue, prefill, transfer, decode


def spans(requests: RequestColumns) -> Spans:
    """Divide each request's time. Without a move of KV there is no transfer, and decode starts at the first token."""
    arrival, first = floats(requests.arrival_s), floats(requests.first_token_s)
    adopted, finish = floats(requests.adopted_s), floats(requests.finish_s)
    queue = floats(requests.queue_s)
    moved = np.where(np.isnan(adopted), first, np.maximum(adopted, first))
    return Spans(queue, first - arrival - queue, np.where(np.isnan(adopted), np.nan, moved - first), finish - moved)


def slowest_charts(requests: RequestColumns, times: Latencies) -> list[BarChart]:
    """Charts of the slowest first tokens and the longest requests, each a bar from its arrival, divided into parts."""
    parts = spans(requests)
    found = []
    for chart_id, title, values, used in (
        ("slow-ttft", "Slowest first tokens", times.ttft_s, 2),
        ("slow-e2e", "Slowest requests", times.e2e_s, 4),
    ):
        rows = _slowest(values, _DRAWN)
        if rows:
            found.append(_bars(chart_id, title, rows, parts, used))
    return found


def slowest_table(requests: RequestColumns, times: Latencies) -> Table:
    """The slowest requests by each latency; the column `slow in` names it."""
    parts = spans(requests)
    heads = columns(
        "no.", "slow in", "arrived at", "prompt", "cached", "output", "TTFT", "TPOT", "end to end", *PARTS, "sent",
        text=("slow in",),
    )  # fmt: skip
    rows = []
    for kind, values in zip(_KINDS, (times.ttft_s, times.tpot_s, times.e2e_s), strict=True):
        for row in _slowest(values, _SHOWN):
            latencies = (times.ttft_s[row], times.tpot_s[row], times.e2e_s[row])
            cells = [
                str(row), kind, numbers.clock(requests.arrival_s[row]), numbers.count(requests.prompt_tokens[row]),
                numbers.count(requests.cached_tokens[row]), numbers.count(requests.output_tokens[row]),
                *(numbers.duration(float(value)) for value in (*latencies, *parts.of(row))),
                numbers.count(requests.attempts[row]),
            ]  # fmt: skip
            rows.append(TableRow(cells, kind=kind))
    return Table(heads, rows, f"{NOTE} Sent: how often to a prefill instance. No.: in order of arrival, from 0.")


def _slowest(values: Floats, most: int) -> list[int]:
    """Rows with the largest values, in descending order; of equal values the earliest."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(-values[known], kind="stable")]
    return [int(row) for row in order[:most]]


def _bars(chart_id: str, title: str, rows: list[int], parts: Spans, used: int) -> BarChart:
    bars = []
    for lane, row in enumerate(rows):
        begin = 0.0
        for key, seconds in enumerate(parts.of(row)[:used]):
            if seconds > 0:
                bars.append(
                    Bar(lane, begin, begin + seconds, key, f"no. {row}: {PARTS[key]} {numbers.duration(seconds)}")
                )
                begin += seconds
    return BarChart(
        id=chart_id,
        title=title,
        note="From the arrival on, by their numbers in the table below.",
        x=Axis(unit="s"),
        lanes=[str(row) for row in rows],
        lane_px=_LANE_PX,
        keys=[Key(name=name, color=color) for name, color in zip(PARTS[:used], _COLORS, strict=False)],
        bars=bars,
    )
