"""Runs experiments one after the other; all reports are made from the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hardware.cost.row_kind import RowKind
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.known_misses import UNEXPLAINED, reason_for
from serving.tools.paper.rows import CLOSE, Findings, Row
from serving.tools.paper.setting import Setting

Progress = Callable[[Experiment, bool], None]
"""Called with each experiment at its start (False) and at its end (True)."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """One completed experiment."""

    experiment: Experiment
    findings: Findings

    def reason(self, row: Row) -> str:
        """Why a row misses; see `known_misses.reason_for`."""
        return reason_for(self.experiment.name, row)


NEAR = 0.10
"""Relative error up to which a predicted row counts as `near`."""
_COMPARED: tuple[RowKind, ...] = tuple(kind for kind in RowKind if kind is not RowKind.QUOTED)
_ASIDE = (
    (RowKind.FITTED, "fitted"),
    (RowKind.DERIVED, "derived by arithmetic"),
    (RowKind.READ_BACK, "inputs read back"),
)
"""Kinds in which agreement proves little, as the score names them."""


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of one kind. `close`: within 5 %, of a bound that holds; `near`: the same within 10 %."""

    rows: int = 0
    close: int = 0
    near: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy of all rows; predicted rows are the main result, and other kinds are counted separately.

    Attributes:
        counts: of each kind that is compared.
        explained: further off, or a bound broken, with a reason.
    """

    counts: Mapping[RowKind, Count]
    explained: int
    unexplained: int
    quoted: int

    @property
    def predicted(self) -> Count:
        """Rows without any fit to them."""
        return self.counts[RowKind.PREDICTED]

    @property
    def headline(self) -> str:
        """Predicted rows, in a clause."""
        one = self.predicted
        if not one.rows:
            return "Predicted: no row"
        return f"Predicted: {one.close} of {one.rows} rows within {CLOSE:.0%}, {one.near} within {NEAR:.0%}"

    @property
    def aside(self) -> str:
        """All other rows, in a clause; empty if there are none."""
        found = ((self.counts[kind], name) for kind, name in _ASIDE)
        return ", ".join(f"{one.close} of {one.rows} {name}" for one, name in found if one.rows)

    @property
    def text(self) -> str:
        """One line."""
        aside = f"; apart from these, within {CLOSE:.0%}: {self.aside}" if self.aside else ""
        unexplained = f", {self.unexplained} {UNEXPLAINED}" if self.unexplained else ""
        return f"{self.headline}{aside}; {self.explained} missed with a reason{unexplained}; {self.quoted} quoted"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All requested experiments."""

    parts: tuple[Reproduced, ...]
    seed: int
    quick: bool

    @property
    def score(self) -> Score:
        """Count the rows of all experiments."""
        rows = [(part, row) for part in self.parts for row in part.findings.rows]
        counts = {kind: _count([row for _, row in rows if row.kind is kind]) for kind in _COMPARED}
        reasons = [reason for part, row in rows if (reason := part.reason(row))]
        unexplained = reasons.count(UNEXPLAINED)
        quoted = sum(row.kind is RowKind.QUOTED for _, row in rows)
        return Score(counts, len(reasons) - unexplained, unexplained, quoted)


def _count(rows: Sequence[Row]) -> Count:
    return Count(len(rows), sum(row.within(CLOSE) for row in rows), sum(row.within(NEAR) for row in rows))


def reproduce(experiments: Sequence[Experiment], setting: Setting, progress: Progress | None = None) -> Reproduction:
    """Run the experiments."""
    parts: list[Reproduced] = []
    for experiment in experiments:
        if progress is not None:
            progress(experiment, False)
        parts.append(Reproduced(experiment, experiment.run(setting)))
        if progress is not None:
            progress(experiment, True)
    return Reproduction(tuple(parts), setting.seed, setting.quick)
