"""The server's own metrics on the run's time axis, as plotted and as saved in `server_metrics.jsonl`.

    gauge                   its value, under its own name
    counter                 its growth per second since the previous look, as `NAME_per_s` (without `_total`)
    histogram               the mean of observations since the previous look, as `NAME_mean`; None without any
    prefix cache            share of hits in the tokens looked up since then, as `prefix_cache_hit_share`

A counter that falls (the server restarted) gives None, never a negative rate.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError, explained
from loadgen.regular_file import check_regular
from loadgen.run_folder import SERVER_METRICS

# A page of Prometheus text to the few numbers that matter for a run.
#
# Only families of known prefixes are parsed, without histogram buckets: that is a tenth of what vLLM shows, and the
# parser of `prometheus_client` is exact but slow. Labels are taken together: gauges and counters of several engines are
# summed, except shares (0 to 1), of which the mean is taken.

PREFIXES = ("vllm:", "cloudmatrix:", "sglang:")
MOST_NAMES = 400
"""Distinct names of one page; further names are ignored."""
_SHARE_ENDINGS = ("_perc", "_rate", "_ratio", "_usage", "_share")
_BY_STATE = ("_info", "_state", "_by_reason")
"""Gauges whose labels carry the information; their sum has no meaning."""
_SUMMARY_LABEL = "quantile"


class MetricsPage(msgspec.Struct, frozen=True):
    """Parsed response of /metrics.

    Attributes:
        gauges: name -> value now.
        counters: name (with `_total`) -> count since the server started.
        sums, counts: name of a histogram or summary -> sum of its observations, number of them.
    """

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}

    def is_empty(self) -> bool:
        """Whether the page had no relevant metric."""
        return not (self.gauges or self.counters or self.sums)


def parse(text: str) -> MetricsPage:
    """Read a page. Pages of other programs, with none of the names, give an empty `MetricsPage`.

    Raises: ValueError if lines of interest are not in Prometheus' text format.
    """
    page = MetricsPage()
    members: dict[str, int] = {}
    for family in text_string_to_metric_families("\n".join(_lines_of_interest(text))):
        for sample in family.samples:
            if math.isnan(sample.value) or _SUMMARY_LABEL in sample.labels:
                continue
            table, name = _place(page, family.type, sample.name)
            if table is None or (name not in table and len(table) >= MOST_NAMES):
                continue
            table[name] = table.get(name, 0.0) + sample.value
            members[name] = members.get(name, 0) + 1
    for name in page.gauges:
        if name.endswith(_SHARE_ENDINGS):
            page.gauges[name] /= members[name]
    return page


def _lines_of_interest(text: str) -> Iterator[str]:
    """Sample lines of known prefixes and their types, without buckets."""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            if line[7:].startswith(PREFIXES):
                yield line
        elif line.startswith(PREFIXES) and "_bucket{" not in line:
            yield line


def _place(page: MetricsPage, kind: str, name: str) -> tuple[dict[str, float] | None, str]:
    """Table and name for a sample; no table if the sample is not used.

    Without a type line, the suffix of the name decides.
    """
    if name.endswith(("_bucket", "_created", *_BY_STATE)):
        return None, name
    distribution = kind in ("histogram", "summary")
    if distribution or kind == "unknown":
        if name.endswith("_sum"):
            return page.sums, name.removesuffix("_sum")
        if name.endswith("_count"):
            return page.counts, name.removesuffix("_count")
    if kind == "counter" or name.endswith("_total"):
        return page.counters, name if name.endswith("_total") else f"{name}_total"
    return (None if distribution else page.gauges), name


# The server's own metrics on the run's time axis, as plotted and as saved in `server_metrics.jsonl`.

HIT_SHARE = "prefix_cache_hit_share"
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
_NPUS = "cloudmatrix:npus"
_TIME = "t_s"


class MetricsScrape(msgspec.Struct, frozen=True):
    """A page with its time [s, any clock]."""

    time_s: float
    page: MetricsPage


class ServerSeries(msgspec.Struct):
    """Columns of equal length: `values[name][i]` belongs to `times_s[i]` [s from the run's start; before it < 0]."""

    times_s: list[float] = []
    values: dict[str, list[float | None]] = {}


def series_of(looks: Sequence[MetricsScrape], start_s: float) -> ServerSeries:
    """Chronological samples as columns.

    Args:
        start_s: the run's start, on the samples' clock.
    """
    rows: list[dict[str, float | None]] = []
    for number, look in enumerate(looks):
        row: dict[str, float | None] = dict(look.page.gauges)
        if number:
            row |= _between(looks[number - 1], look)
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    times_s = [round(look.time_s - start_s, 3) for look in looks]
    return ServerSeries(times_s, {name: [row.get(name) for row in rows] for name in names})


def npus(series: ServerSeries) -> int | None:
    """The largest number of NPUs that the server's instances had together; None if the server does not report them."""
    known = [value for value in series.values.get(_NPUS, []) if value]
    return round(max(known)) if known else None


def write_series(folder: Path, series: ServerSeries) -> None:
    """Write `server_metrics.jsonl`: one object per look, its time first; no file if the series is empty.

    Raises: OutputError.
    """
    if not series.times_s:
        return
    with explained(folder), (folder / SERVER_METRICS).open("wb") as file:
        for number, time_s in enumerate(series.times_s):
            row = {name: column[number] for name, column in series.values.items()}
            file.write(msgspec.json.encode({_TIME: time_s} | row) + b"\n")


def read_series(folder: Path) -> ServerSeries | None:
    """Read the file of `write_series`; None if the run has no such file.

    Raises: UsageError if it cannot be read; TraceFormatError naming the line that is none.
    """
    path = folder / SERVER_METRICS
    try:
        check_regular(path)
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    rows: list[dict[str, float | None]] = []
    times_s = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json_text.decode(line, dict[str, float | None])
            time_s = row.pop(_TIME, None)
        except NOT_JSON as error:
            raise TraceFormatError(f"{path}:{number}: not a line of server metrics ({error})") from None
        if time_s is None:
            raise TraceFormatError(f"{path}:{number}: not a line of server metrics (no {_TIME})")
        times_s.append(time_s)
        rows.append(row)
    return ServerSeries(times_s, {name: [row.get(name) for row in rows] for name in _names(rows)})


def _names(rows: Iterable[dict[str, float | None]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _between(before: MetricsScrape, after: MetricsScrape) -> dict[str, float | None]:
    """Rates and means of one interval."""
    seconds = after.time_s - before.time_s
    row: dict[str, float | None] = {}
    for name in after.page.counters:
        grown = _grown(before, after, name)
        row[f"{name.removesuffix('_total')}_per_s"] = None if grown is None or seconds <= 0 else grown / seconds
    for name in after.page.sums:
        row[f"{name}_mean"] = _mean(before, after, name)
    queries, hits = _grown(before, after, _QUERIES), _grown(before, after, _HITS)
    if _QUERIES in after.page.counters:
        row[HIT_SHARE] = hits / queries if hits is not None and queries else None
    return row


def _grown(before: MetricsScrape, after: MetricsScrape, name: str) -> float | None:
    """Growth of a counter.

    A counter with labels may appear with its first event, so what was absent on a page with counters was 0.
    """
    if name not in after.page.counters or not before.page.counters:
        return None
    grown = after.page.counters[name] - before.page.counters.get(name, 0.0)
    return grown if grown >= 0 else None


def _mean(before: MetricsScrape, after: MetricsScrape, name: str) -> float | None:
    """Mean of a histogram's new observations."""
    if name not in after.page.sums:
        return None
    count = after.page.counts.get(name, 0.0) - before.page.counts.get(name, 0.0)
    total = after.page.sums[name] - before.page.sums.get(name, 0.0)
    return total / count if count > 0 and total >= 0 else None
