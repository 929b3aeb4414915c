"""Reasons for misses, each defined once for all the rows that share it."""

from dataclasses import dataclass

from serving.tools.paper import texts
from serving.tools.paper.known_misses import UNEXPLAINED
from serving.tools.paper.reproduction import Reproduced


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `rows`: those that it explains, with their errors."""

    text: str
    rows: str

    @property
    def unexplained(self) -> bool:
        """Whether no reason is known."""
        return self.text == UNEXPLAINED


def reasons_of(part: Reproduced) -> list[Reason]:
    """Reasons of an experiment, in the order of its rows."""
    found: dict[str, list[str]] = {}
    for row in part.findings.rows:
        if reason := part.reason(row):
            found.setdefault(reason, []).append(f"{row.label} ({texts.error_text(row)})")
    return [Reason(text, "; ".join(rows)) for text, rows in found.items()]
