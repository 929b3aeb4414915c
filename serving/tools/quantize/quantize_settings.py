"""Settings of a quantisation, as frozen values."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class RecipeSteps:
    """The optional steps of the recipe. Without any, each output channel's scale is its largest weight / 127.

    Args:
        fold: outlier suppression: scales per input channel, folded into the operator before.
        search: the strength of each fold is searched on calibration data (eq. 3) instead of being one half.
        clip: each output channel's range is searched on calibration data (eq. 4).
        compensate: what rounding one column spoils is made up for in those after it (GPTQ).
    """

    fold: bool = True
    search: bool = True
    clip: bool = True
    compensate: bool = True

    def without(self, name: str) -> "RecipeSteps":
        """All but one; the search is removed with the folds that it belongs to."""
        off = {"fold": False, "search": False} if name == "fold" else {name: False}
        return replace(self, **off)

    def on(self) -> Iterator[str]:
        """Names of the steps that are done."""
        return (name for name in STEP_NAMES if getattr(self, name))


STEP_NAMES = tuple(field.name for field in fields(RecipeSteps))
NO_STEPS = RecipeSteps(fold=False, search=False, clip=False, compensate=False)

STEP_HELP = {
    "fold": "scale channels with outliers down, and their weights up, inside the neighbouring operator (exact)",
    "search": "search the strength of each fold by its products' output error (eq. 3); without: one half",
    "clip": "search each output channel's clipping range by its output error (eq. 4)",
    "compensate": "make up for each column's rounding in the columns after it (GPTQ)",
}
"""One line each, for `--help` and the report."""


TEXT_TOKENS = 16384
"""Default length of calibration text: twice as much did not lower errors on the demo model."""
RANDOM_TOKENS = 4096
"""Default number of random tokens: more of them do not help."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Args:
        steps: that the written model gets.
        kept: operator classes that stay as they are although they could be INT8.
        tokens: of calibration text, held-out part included.
        window: tokens of one calibration sequence, at most.
        trials: whether to measure what each step is worth, by a run without it.
        seed: chooses windows of a long text, and random tokens.
    """

    steps: RecipeSteps = RecipeSteps()
    kept: frozenset[str] = frozenset()
    tokens: int = TEXT_TOKENS
    window: int = 512
    trials: bool = True
    seed: int = 0

    def runs(self) -> dict[str, RecipeSteps]:
        """All trials to compute, by name; the first is what is written."""
        wanted = {"chosen": self.steps}
        if self.trials:
            wanted |= {f"without {name}": self.steps.without(name) for name in self.steps.on()}
            if any(self.steps.on()):
                wanted["plain rounding"] = NO_STEPS
        return wanted
