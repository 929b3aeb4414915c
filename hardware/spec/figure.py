"""A number with where it comes from and how far to trust it."""

from dataclasses import dataclass
from enum import StrEnum

from hardware.errors import SpecError


class Confidence(StrEnum):
    """How far a published number can be trusted."""

    PAPER = "paper"
    """Stated in the CloudMatrix384 paper (version 2 unless the source names another)."""
    DERIVED = "derived"
    """Arithmetic on stated numbers; the source shows it."""
    SECONDARY = "secondary"
    """Stated in another publication."""
    UNVERIFIED = "unverified"
    """Not stated plainly in any available source; treat it as a parameter."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the catalogue.

    Attributes:
        value: the number, in `unit`.
        unit: "1" for a count, else "B", "B/s", "s", "flop/s", "op/s", "W".
        source: section or table of the paper, or another reference.
        confidence: how far to trust it.
        note: what a reader must know before using it.
    """

    value: float
    unit: str
    source: str
    confidence: Confidence = Confidence.PAPER
    note: str = ""

    @property
    def whole(self) -> int:
        """The value as an integer.

        Raises: SpecError if it is not one.
        """
        if self.value != int(self.value):
            raise SpecError(f"{self.value} {self.unit} ({self.source}) is not a whole number; use .value")
        return int(self.value)
