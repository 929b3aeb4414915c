"""Pages of metrics for scrapers: Prometheus' text format, or OpenMetrics, which has exemplars."""

from collections.abc import Iterable, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector, CollectorRegistry

OPENMETRICS_TYPE = openmetrics_format.CONTENT_TYPE_LATEST
Page = Collector | CollectorRegistry


class _Together(Collector):
    """Several pages as one."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages

    def collect(self) -> Iterable[Metric]:
        """The metrics of all pages, in order."""
        return (metric for page in self._pages for metric in page.collect())


def exposed(pages: Sequence[Page], *, openmetrics: bool = False) -> bytes:
    """Pages as one text."""
    together = _Together(pages)
    if not openmetrics:
        return generate_latest(together)
    # Its default replaces the `:` in names by `_`, although it is allowed; this leaves all names unchanged.
    text: bytes = openmetrics_format.generate_latest(together, openmetrics_format.ALLOWUTF8)  # type: ignore[no-untyped-call]
    return text


def wants_openmetrics(accept: str) -> bool:
    """Whether the `Accept` header prefers OpenMetrics: it lists it, and no other type with a higher weight."""
    weights: dict[str, float] = {}
    for one in accept.replace(" ", "").split(","):
        kind, *options = one.split(";")
        weights[kind] = max(weights.get(kind, 0.0), _weight(options))
    own = weights.get("application/openmetrics-text", 0.0)
    return own > 0.0 and own >= weights.get("text/plain", 0.0)


def _weight(options: Sequence[str]) -> float:
    for option in options:
        if option.startswith("q="):
            try:
                return float(option[2:])
            except ValueError:
                return 0.0
    return 1.0
