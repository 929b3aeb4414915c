"""Histogram exemplars: the latest traced observation of each bucket."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.samples import Exemplar

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
        """Buckets of the histogram with their exemplars."""
        return [(*bucket, self._newest.get(index)) for index, bucket in enumerate(buckets)]
