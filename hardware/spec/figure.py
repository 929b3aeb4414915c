"""A number with where it comes from and how far to trust it."""

from dataclasses import dataclass
from enum import StrEnum

from hardware.errors import SpecError


class Confidence(StrEnum):
    """How far a published number can be trusted."""

    PAPER = "paper"
    """The CloudMatrix384 paper states it (version 2 unless the source says otherwise)."""
    DERIVED = "derived"
    """Arithmetic on stated numbers; the source shows it."""
    SECONDARY = "secondary"
    """Somebody else states it."""
    UNVERIFIED = "unverified"
    """Nobody we could read states it plainly; treat it as a parameter."""


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
