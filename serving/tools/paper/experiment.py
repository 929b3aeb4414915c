"""One published table or figure that we can regenerate."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from hardware.cost import DEEPSEEK_R1, CostModel, load_device
from hardware.cost.published import RowKind
from serving.errors import ServingError

# Setting of every experiment: the cost model, a seed, and how thorough to be.

DEVICE = "ascend-910c"


def default_cost() -> CostModel:
    """DeepSeek-R1 on the die of a CloudMatrix384."""
    return CostModel(load_device(DEVICE), DEEPSEEK_R1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of `cloudmatrix reproduce`.

    Attributes:
        quick: fewer dies, samples and requests: the same questions in a tenth of the time.
    """

    cost: CostModel = field(default_factory=default_cost)
    seed: int = 0
    quick: bool = False

    def stream(self, component: str) -> random.Random:
        """Randomness of one component; what others draw does not change it."""
        return random.Random(f"{self.seed}/reproduce/{component}")

    def size(self, full: int, quick: int) -> int:
        """A number of samples."""
        return quick if self.quick else full


# Result of an experiment: published values with ours, and curves. Plain values, no drawing.

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


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure.

    Attributes:
        key: unique in its experiment.
        published, ours: in `unit`; ours is None for what is only quoted, and so is `how`.
        source: where it was published.
        kind: what agreement proves.
        relation: a bound has an error only if it is broken, and is missed then, however little.
        headline: belongs into the short table.
    """

    key: str
    label: str
    published: float
    ours: float | None
    unit: str
    how: How | None
    source: str
    kind: RowKind
    relation: Relation = "="
    headline: bool = False

    def __post_init__(self) -> None:
        """Refuse a row without a comparison that is not quoted, or the reverse. Raises: ServingError."""
        quoted = self.kind is RowKind.QUOTED
        if quoted != (self.ours is None) or quoted != (self.how is None):
            raise ServingError(f"row {self.key} is {self.kind}, but ours is {self.ours} and how is {self.how}")

    @property
    def error(self) -> float | None:
        """Our figure / published figure - 1; 0 for a bound that holds; None for a row that is only quoted."""
        if self.ours is None:
            return None
        bound_holds = (self.relation == "<" and self.ours < self.published) or (
            self.relation == ">" and self.ours > self.published
        )
        if bound_holds:
            return 0.0
        return self.ours / self.published - 1 if self.published else (0.0 if self.ours == 0 else float("inf"))

    def within(self, error: float) -> bool:
        """Whether ours is at most so far off, relatively; of a bound, whether it holds."""
        if self.error is None:
            return False
        return self.error == 0 if self.relation in "<>" else abs(self.error) <= error

    @property
    def how_text(self) -> str:
        """`run` or `model`, and the kind: "run, predicted"; "quoted" alone."""
        return str(self.kind) if self.how is None else f"{self.how}, {self.kind}"


def quoted(key: str, label: str, published: float, unit: str, source: str) -> Row:
    """Another system's figure."""
    return Row(key, label, published, None, unit, None, source, RowKind.QUOTED)


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
    """Findings of one experiment. `notes`: what a reader needs to know in addition to the values."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = field(default_factory=tuple)


# One published table or figure that we can regenerate.


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment: its title, and the function that does it.

    Attributes:
        name: as typed: `table5`.
        title: as published, in our words.
        method: how our figures come about.
        seconds, quick_seconds: about how long it takes, for the progress bar.
    """

    name: str
    title: str
    method: str
    run: Callable[[Setting], Findings]
    seconds: float = 0.05
    quick_seconds: float = 0.05
