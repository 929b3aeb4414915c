"""Kinds of comparisons with published values: by what agreement proves."""

from enum import StrEnum


class RowKind(StrEnum):
    """How much the fit used of a published value.

    Only `PREDICTED` rows show the accuracy for unpublished values.
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
