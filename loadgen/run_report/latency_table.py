"""The rows of the latency table, the same for the terminal and the page: which metrics, which columns."""

from collections.abc import Sequence

from loadgen.result import MetricDistribution, RunResult
from loadgen.run_report.names import MAIN_METRICS, metric_title

SECONDARY_METRICS = ("ttfo", "ntpot", "client_queue", "lateness", "connect", "server_queue", "server_ttft")
TOKEN_METRICS = ("input_tokens", "output_tokens", "cached_tokens")
_SAME = {"itl_token": "itl", "ttfo": "ttft"}
_SENT_TO_INTENDED = {"ttft_sent": "ttft", "e2e_sent": "e2e"}


def present(result: RunResult, names: Sequence[str]) -> list[tuple[str, MetricDistribution]]:
    """Those of the metrics that were measured, in this order.

    A metric equal to another one (one token per chunk, no reasoning) is left out.
    """
    found = [(name, result.metrics[name]) for name in names if name in result.metrics and result.metrics[name].count]
    return [
        (name, values)
        for name, values in found
        if name not in _SAME or not _equal(values, result.metrics.get(_SAME[name]))
    ]


def all_metrics(result: RunResult) -> list[tuple[str, MetricDistribution]]:
    """Every metric that was measured: the main ones, then the others, then those not known here."""
    known = (*MAIN_METRICS, *SECONDARY_METRICS, *TOKEN_METRICS)
    return present(result, [*known, *(name for name in result.metrics if name not in known)])


def percentile_columns(result: RunResult) -> list[str]:
    """Percentiles that the result has, ascending."""
    names = {name for metric in result.metrics.values() for name in metric.percentiles}
    return sorted(names, key=float)


def has_both_clocks(result: RunResult) -> bool:
    """Whether it matters from where latency is counted: sends were not always on time."""
    return any(
        sent in result.metrics
        and intended in result.metrics
        and not _equal(result.metrics[sent], result.metrics[intended])
        for sent, intended in _SENT_TO_INTENDED.items()
    )


def title(name: str, both_clocks: bool) -> str:
    """Title of a metric; in a table with both clocks, titles of the intended-send clock include it."""
    plain = metric_title(name)
    return f"{plain} from intended send" if both_clocks and name in _SENT_TO_INTENDED.values() else plain


def _equal(values: MetricDistribution, others: MetricDistribution | None) -> bool:
    return others is not None and values.percentiles == others.percentiles and values.mean == others.mean
