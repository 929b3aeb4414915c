"""Kinds of comparisons with published values: by what an agreement proves."""

from enum import StrEnum


class RowKind(StrEnum):
    """How much the fit used of a published value.

    Only `PREDICTED` rows show the accuracy for unpublished values.
    """

    READ_BACK = "read back"
    """An input of the model, printed again: agreement proves only that it is kept."""
    FITTED = "fitted"
    """A constant was fitted or chosen in view of it, or a part of the result was an input, such as another value of
    the same measurement."""
    DERIVED = "derived"
    """Arithmetic on published values, or on another row, without content of its own to verify."""
    PREDICTED = "predicted"
    """No constant was fitted to it, chosen in view of it or taken from its measurement."""
    QUOTED = "quoted"
    """Another system's figure, repeated for comparison: we have none."""
