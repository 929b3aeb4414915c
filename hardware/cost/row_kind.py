"""Kinds of rows that set ours beside a published figure: by what agreement proves."""

from enum import StrEnum


class RowKind(StrEnum):
    """How much of a published figure the model was told before it was asked.

    Only `PREDICTED` rows say how far a figure can be trusted that nobody has published yet.
    """

    READ_BACK = "read back"
    """An input of the model, printed again: agreement proves that it is kept, nothing else."""
    FITTED = "fitted"
    """A constant was fitted or chosen in view of it, or it was told a part of the answer, such as another figure of the
    same measurement."""
    DERIVED = "derived"
    """Arithmetic on published figures, or on another row: it has nothing of its own that could be right."""
    PREDICTED = "predicted"
    """Nothing was fitted to it, chosen in view of it or taken from its measurement."""
    QUOTED = "quoted"
    """Another system's figure, repeated for comparison: we have none."""
