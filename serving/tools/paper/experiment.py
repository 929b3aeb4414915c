"""One published table or figure that we can regenerate."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.tools.paper.rows import Findings
from serving.tools.paper.setting import Setting


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
