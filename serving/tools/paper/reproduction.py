"""Runs experiments one after the other; what comes out is what every report is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.tools.paper.experiment import Experiment
from serving.tools.paper.known_misses import UNEXPLAINED, reason_for
from serving.tools.paper.rows import CLOSE, Findings, Row
from serving.tools.paper.setting import Setting

Progress = Callable[[Experiment, bool], None]
"""Told each experiment as it begins (False) and when it is done (True)."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """One experiment, done."""

    experiment: Experiment
    findings: Findings

    def reason(self, row: Row) -> str:
        """Why a row misses; see `known_misses.reason_for`."""
        return reason_for(self.experiment.name, row)


@dataclass(frozen=True, slots=True)
class Score:
    """How close all rows are.

    Attributes:
        close: within 5 %. explained: further off, with a reason.
        free: rows to which nothing was fitted; `free_close` of them are within 5 %.
    """

    rows: int
    close: int
    explained: int
    unexplained: int
    quoted: int
    free: int
    free_close: int

    @property
    def text(self) -> str:
        """One line."""
        unexplained = f", {self.unexplained} {UNEXPLAINED}" if self.unexplained else ""
        return (
            f"{self.close} of {self.rows} rows within {CLOSE:.0%}, {self.explained} further off with a reason"
            f"{unexplained}; of the {self.free} rows to which nothing was fitted, "
            f"{self.free_close} within {CLOSE:.0%}; {self.quoted} quoted"
        )


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All experiments that were asked for."""

    parts: tuple[Reproduced, ...]
    seed: int
    quick: bool

    @property
    def score(self) -> Score:
        """Rows counted."""
        compared = [(part, row) for part in self.parts for row in part.findings.rows if row.error is not None]
        reasons = [part.reason(row) for part, row in compared]
        unexplained = reasons.count(UNEXPLAINED)
        close = reasons.count("")
        quoted = sum(row.error is None for part in self.parts for row in part.findings.rows)
        free = [reason for (_, row), reason in zip(compared, reasons, strict=True) if not row.fitted]
        explained = len(compared) - close - unexplained
        return Score(len(compared), close, explained, unexplained, quoted, len(free), free.count(""))


def reproduce(experiments: Sequence[Experiment], setting: Setting, progress: Progress | None = None) -> Reproduction:
    """Run them."""
    parts: list[Reproduced] = []
    for experiment in experiments:
        if progress is not None:
            progress(experiment, False)
        parts.append(Reproduced(experiment, experiment.run(setting)))
        if progress is not None:
            progress(experiment, True)
    return Reproduction(tuple(parts), setting.seed, setting.quick)
