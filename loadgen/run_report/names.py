"""How metrics and outcomes are called in tables and plots; what they mean is defined in `metrics.definitions`."""

from collections.abc import Sequence

from loadgen.record import DELIBERATE, FAILURES, NOT_COUNTED, SUCCESSES, RequestOutcome
from loadgen.report import numbers
from loadgen.result import Generator, MetricDistribution, RunResult

METRIC_TITLES = {
    "ttft": "TTFT",
    "ttft_sent": "TTFT from actual send",
    "ttfo": "TTFO",
    "tpot": "TPOT",
    "itl": "ITL per chunk",
    "itl_token": "ITL per token",
    "e2e": "E2E",
    "e2e_sent": "E2E from actual send",
    "ntpot": "Normalised TPOT",
    "server_queue": "Queueing in the server",
    "server_ttft": "TTFT reported by the server",
    "lateness": "Generator lateness",
    "client_queue": "Waiting for a slot",
    "connect": "Connecting",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "cached_tokens": "Cached tokens",
}

MAIN_METRICS = ("ttft", "ttft_sent", "tpot", "itl", "itl_token", "e2e", "e2e_sent")
"""First latencies of every table; the first of a pair counts from the intended send."""

_OUTCOME_TITLES = {
    RequestOutcome.OK: "successful",
    RequestOutcome.SHORT: "too few tokens",
    RequestOutcome.REJECTED: "rejected (429, 503)",
    RequestOutcome.HTTP_ERROR: "HTTP error",
    RequestOutcome.STREAM_ERROR: "error in the stream",
    RequestOutcome.TRUNCATED: "stream cut",
    RequestOutcome.MALFORMED_REPLY: "unreadable answer",
    RequestOutcome.CONNECTION: "connection failed",
    RequestOutcome.TIMEOUT: "timed out",
    RequestOutcome.CANCELLED: "cancelled on purpose",
    RequestOutcome.REFUSED_AS_MEANT: "refused as meant",
    RequestOutcome.UNFINISHED: "unfinished at the end",
}
_KINDS = (("ok", SUCCESSES), ("failed", FAILURES), ("deliberate", DELIBERATE), ("unfinished", NOT_COUNTED))


def metric_title(name: str) -> str:
    """The name of a metric in tables; an unknown one keeps its own."""
    return METRIC_TITLES.get(name, name.replace("_", " "))


def outcome_title(outcome: str) -> str:
    """An outcome in words."""
    return _OUTCOME_TITLES[RequestOutcome(outcome)] if outcome in set(RequestOutcome) else outcome


def outcome_kind(outcome: str) -> str:
    """ "ok", "failed", "deliberate" or "unfinished"; an unknown outcome is a failure."""
    return next((kind for kind, members in _KINDS if outcome in members), "failed")


def count_by_kind(outcomes: dict[str, int]) -> dict[str, int]:
    """Number of successful, failed, deliberately ended and unfinished requests."""
    totals = {kind: 0 for kind, _ in _KINDS}
    for outcome, number in outcomes.items():
        totals[outcome_kind(outcome)] += number
    return totals


# The rows of the latency table, the same for the terminal and the page: which metrics, which columns.

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


# The generator's own performance, as sentences for terminal and page.

OWN_LIMIT = "The generator was the bottleneck: these figures say more about it than about the server."
BUSY_MACHINE = "The machine was busy: times are longer than the server's own."
KEPT_UP = "The generator kept up."


def generator_figures(generator: Generator) -> str:
    """Figures that the verdict on the generator rests on, as one sentence."""
    processes = "one process" if generator.workers == 1 else f"{generator.workers} processes"
    parts = [
        f"{processes}, busy for at most {numbers.share(generator.cpu_share)} of a core",
        f"timers late by {numbers.duration(generator.loop_lag_p99_s)} (p99)",
    ]
    if generator.offered_per_s is not None and generator.achieved_per_s is not None:
        achieved, offered = numbers.significant(generator.achieved_per_s), numbers.significant(generator.offered_per_s)
        parts.append(f"{achieved} of {offered} offered requests per second sent")
    if generator.starved_s > 0:
        parts.append(f"slots empty for {numbers.duration(generator.starved_s)} for want of prompts")
    if generator.cores and generator.others_cores is not None:
        parts.append(f"other programs used {generator.others_cores:.1f} of {generator.cores} cores")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
