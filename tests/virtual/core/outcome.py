"""Results of a run's clients, live or in virtual time."""

from dataclasses import dataclass

from serving.virtual.result import Outcome, SimResult


@dataclass(frozen=True)
class Seen:
    """Results of one run's clients."""

    finished: int
    failed: int
    resumed: int
    """Requests of which something was computed again, as an instance or a rank had failed them."""
    tokens: int


def seen(result: SimResult) -> Seen:
    """Outcome of a run in virtual time."""
    rows, outcomes = result.requests, list(result.requests.outcome)
    return Seen(
        outcomes.count(Outcome.FINISHED),
        outcomes.count(Outcome.FAILED),
        sum(attempts > 1 for attempts in rows.attempts),
        sum(rows.output_tokens),
    )
