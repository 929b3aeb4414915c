"""A page of Prometheus text to the few numbers that matter for a run.

Only families of known prefixes are parsed, without histogram buckets: that is a tenth of what vLLM shows, and the
parser of `prometheus_client` is exact but slow. Labels are taken together: gauges and counters of several engines are
summed, except shares (0 to 1), of which the mean is taken.
"""

import math
from collections.abc import Iterator

import msgspec
from prometheus_client.parser import text_string_to_metric_families

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
