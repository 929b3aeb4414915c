"""Tally of draft tokens of a choice or a request, by position."""

from collections.abc import Sequence
from typing import Any

from serving.values.sequence import DraftUse


class DraftTally:
    """Counts of draft tokens: index 0 is the first draft token of a step."""

    __slots__ = ("accepted", "drafted")

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.accepted: list[int] = []

    def add(self, use: DraftUse) -> None:
        """Count one step."""
        self._grow(use.drafted)
        for position in range(use.drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < use.accepted

    def merge(self, other: "DraftTally") -> None:
        """Add the counts of another tally."""
        self._grow(len(other.drafted))
        for position, count in enumerate(other.drafted):
            self.drafted[position] += count
            self.accepted[position] += other.accepted[position]

    def _grow(self, positions: int) -> None:
        missing = positions - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing


def completion_details(tallies: Sequence[DraftTally]) -> dict[str, Any]:
    """The key `completion_tokens_details` of a request's usage; empty without draft tokens.

    Accepted and rejected tokens have OpenAI's names; `prediction_positions` gives both by position.
    """
    total = DraftTally()
    for tally in tallies:
        total.merge(tally)
    if not total.drafted:
        return {}
    accepted, drafted = sum(total.accepted), sum(total.drafted)
    positions = [
        {"accepted": right, "rejected": made - right} for right, made in zip(total.accepted, total.drafted, strict=True)
    ]
    return {
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "prediction_positions": positions,
        }
    }
