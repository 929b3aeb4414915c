"""How metrics and outcomes are called in tables and plots; what they mean is defined in `metrics.definitions`."""

from loadgen.record import DELIBERATE, FAILURES, NOT_COUNTED, SUCCESSES, RequestOutcome

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
