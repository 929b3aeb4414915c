"""A histogram that costs a bisection and two additions per observation, for a single-threaded event loop."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

SECONDS_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
SECONDS_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
SECONDS_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SECONDS_PAUSE = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 3600.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
"""Except for pauses, these lists are vLLM's, so that dashboards made for it fit."""


def token_buckets(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `limit`."""
    buckets: list[float] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > limit:
                return tuple(buckets) or (1.0,)
            buckets.append(float(step * scale))
        scale *= 10


class BucketHistogram:
    """Counts per bucket, not cumulative, and the sum. Not thread-safe."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper limits, inclusive, increasing; one more bucket counts larger values."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class NamedHistograms:
    """Histograms by name: at most `most` names, further ones share `other`."""

    def __init__(self, bounds: Sequence[float], most: int) -> None:
        self.by_name: dict[str, BucketHistogram] = {}
        self._bounds = bounds
        self._most = most

    def observe(self, name: str, value: float) -> None:
        """Count a value under a name."""
        if name not in self.by_name and len(self.by_name) - ("other" in self.by_name) >= self._most:
            name = "other"
        self.by_name.setdefault(name, BucketHistogram(self._bounds)).observe(value)

    def families(self, name: str, text: str, labels: Sequence[str], own: Sequence[str]) -> Iterable[Metric]:
        """The metric, once it has values. `own`: values of the labels before the last."""
        if self.by_name:
            family = HistogramMetricFamily(name, text, labels=labels)
            for last, one in self.by_name.items():
                family.add_metric((*own, last), cumulative(one.bounds, one.counts), one.total)
            yield family


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets in Prometheus form: cumulative counts, with the upper bound as text."""
    result, running = [], 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        running += count
        result.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(running)))
    return result


# Histogram exemplars: the latest traced observation of each bucket.

Bucket = tuple[str, float, Exemplar | None]


class Exemplars:
    """At most one exemplar per bucket. Not thread-safe.

    Args:
        bounds: of the histogram.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._newest: dict[int, Exemplar] = {}

    def note(self, value: float, trace_id: str, at: float) -> None:
        """Note a traced observation.

        Args:
            trace_id: hexadecimal.
            at: time of the observation, in seconds since 1970.
        """
        self._newest[bisect_left(self._bounds, value)] = Exemplar({"trace_id": trace_id}, value, at)

    def beside(self, buckets: Sequence[tuple[str, float]]) -> list[Bucket]:
        """Each bucket of the histogram with its newest exemplar, None without one."""
        return [(*bucket, self._newest.get(index)) for index, bucket in enumerate(buckets)]
