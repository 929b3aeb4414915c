"""Lengths of prompts and responses: a histogram of each, and the first token's dependence on the prompt."""

from collections.abc import Callable, Sequence

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.report.chart import Axis, Line, LineChart
from loadgen.report.numbers import significant

MOST_BINS = 40
_LEAST_BINS = 8
"""Fewer would make bars as wide as the plot."""
_STEPS = (1, 2, 5)

Length = Callable[[RequestRecord], int | None]


def length_charts(records: Sequence[RequestRecord]) -> list[LineChart]:
    """Histograms of prompts and responses of the successful requests; without a side whose lengths are unknown.

    Responses with longer requested lengths, or prompts with other lengths in the server's count, have a second curve.
    """
    good = [record for record in records if not record.warmup and record.outcome in SUCCESSES]
    sides: tuple[tuple[str, str, Length, Length], ...] = (
        ("input", "Prompt lengths", lambda record: record.input_tokens, lambda record: record.planned_input_tokens),
        ("output", "Answer lengths", lambda record: record.output_tokens, lambda record: record.planned_output_tokens),
    )
    charts = []
    for side, title, told, planned in sides:
        lengths = [length for record in good if (length := told(record)) is not None]
        plan = [length for record in good if told(record) is not None and (length := planned(record)) is not None]
        if lengths:
            charts.append(_histogram(side, title, lengths, plan if len(plan) == len(lengths) else []))
    return charts


def _histogram(side: str, title: str, lengths: Sequence[int], planned: Sequence[int]) -> LineChart:
    """One side; a second curve for the planned lengths, if they differ."""
    differs = bool(planned) and sorted(planned) != sorted(lengths)
    edges = bin_edges([*lengths, *(planned if differs else [])])
    lines = [Line(name="requests", values=_counts(lengths, edges), color="blue", steps=True, fill=True)]
    if differs:
        lines.insert(0, Line(name="planned", values=_counts(planned, edges), color="grey", steps=True, dash=True))
    width = edges[1] - edges[0]
    ordered = sorted(lengths)
    spread = (
        f"All have {ordered[0]:,}."
        if ordered[0] == ordered[-1]
        else f"Median {ordered[len(ordered) // 2]:,}, mean {significant(sum(ordered) / len(ordered))}, "
        f"longest {ordered[-1]:,}."
    )
    return LineChart(
        id=f"{side}-lengths",
        title=title,
        note=f"{spread} Requests per {'length' if width == 1 else f'bin of {width:,} tokens'}.",
        x=Axis(unit="tokens", label="tokens"),
        y=Axis(unit="count", low=0.0),
        xs=[float(edge) for edge in edges],
        lines=lines,
    )


def bin_edges(lengths: Sequence[int]) -> list[int]:
    """Edges of bins of equal, round width that hold all lengths, with an empty bin at either side if it fits.

    Args:
        lengths: at least one.
    """
    low, high = min(lengths), max(lengths)
    width, exponent = 1, 0
    while (high - low) // width + 1 > MOST_BINS:
        exponent += 1
        width = _STEPS[exponent % 3] * 10 ** (exponent // 3)
    first, last = low // width - 1, high // width + 2
    missing = max(0, _LEAST_BINS - (last - first))
    first, last = max(0, first - missing // 2), last + (missing + 1) // 2
    return [place * width for place in range(first, last + 1)]


def _counts(lengths: Sequence[int], edges: Sequence[int]) -> list[float | None]:
    """Lengths in each bin, and 0 at the last edge."""
    width = edges[1] - edges[0]
    counts = [0] * len(edges)
    for length in lengths:
        counts[(length - edges[0]) // width] += 1
    return [float(count) for count in counts]
