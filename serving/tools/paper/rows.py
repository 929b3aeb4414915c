"""Result of an experiment: published figures with ours beside them, and curves. Plain values, no drawing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Relation = Literal["=", "<", ">", "~"]
"""How the paper states a figure: exactly, as a bound, or roughly."""

CLOSE = 0.05
"""Relative error up to which a row needs no reason."""


class How(StrEnum):
    """Where our figure comes from."""

    RUN = "run"
    """The scheduler, engines or transfers ran in virtual time."""
    MODEL = "model"
    """One question to the cost model."""
    QUOTED = "quoted"
    """Another system's figure, repeated for comparison; we have none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure.

    Attributes:
        key: unique in its experiment.
        published, ours: in `unit`; ours is None for what is only quoted.
        fitted: the cost model was given this figure, or a parameter was fitted to it: agreement proves little.
        source: where it was published.
        relation: a bound has an error only if it is broken.
        headline: belongs into the short table.
    """

    key: str
    label: str
    published: float
    ours: float | None
    unit: str
    how: How
    source: str
    fitted: bool = False
    relation: Relation = "="
    headline: bool = False

    @property
    def error(self) -> float | None:
        """Ours over published, less one; 0 for a bound that holds; None for what is only quoted."""
        if self.ours is None:
            return None
        bound_holds = (self.relation == "<" and self.ours < self.published) or (
            self.relation == ">" and self.ours > self.published
        )
        if bound_holds:
            return 0.0
        return self.ours / self.published - 1 if self.published else (0.0 if self.ours == 0 else float("inf"))

    @property
    def how_text(self) -> str:
        """`run`, `model`, `quoted`, with `fitted` where that applies."""
        return f"{self.how.value}, fitted" if self.fitted else self.how.value


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot. `published`: drawn as points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    published: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one axis. `limits`: values that were to be kept, by name."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    limits: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of one experiment. `notes`: what a reader has to know beside the figures."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = field(default_factory=tuple)
