"""How far predictions of published rows were off that the model had not seen: what stated errors are made of.

Each row belongs to a class: kind of step, device, kind of attention, engine. A question whose class has rows of its own
gets their spread. Any other one gets the widest spread of its neighbours: rows of the same attention on any device, of
the same device, of the same engine, and all rows in place of any of these without rows. `checked.csv` has the errors;
after a change of the cost model or of its rows

    python -m hardware.cost.checked_sources

writes it again: fitted rows with the error that they have when they are left out, all others with their error.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from statistics import median

from hardware.cost.attention import GroupedAttentionSizes
from hardware.cost.model_shape import ModelShape
from hardware.regular_file import read_regular_text

TABLE = Path(__file__).parent / "checked.csv"
CONTAINED = 0.9
"""Share of rows that a spread is to contain."""
LEAST_SPREAD = 0.05
"""Stated at least: published values are rounded, and read off averages."""
OWN_ROWS = 4
"""Rows of its own class from which a question needs no neighbours: with three, 90 % of rows would not be contained."""
OF_GPUS = "sglang"
"""Engine of the rows on GPUs without a profile of their own."""


@dataclass(frozen=True, slots=True)
class StepClass:
    """Class of steps: one kind, device, attention and engine.

    Attributes:
        kind: `decode` or `prefill`.
        device: as its file is called; empty = a file of one's own, which no row is of.
        attention: `latent`, `sparse` or `grouped`.
        engine: whose steps these are.
    """

    kind: str
    device: str
    attention: str
    engine: str


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One published row. `error`: predicted over published, less one."""

    kind: str
    device: str
    attention: str
    engine: str
    name: str
    error: float

    @property
    def step_class(self) -> StepClass:
        """Class of the row."""
        return StepClass(self.kind, self.device, self.attention, self.engine)


@dataclass(frozen=True, slots=True)
class Stated:
    """An error to expect, and whose rows it is of. `neighbours`: of no rows of the same class."""

    error: float
    why: str
    neighbours: bool


def attention_kind(shape: ModelShape) -> str:
    """Kind of a model's attention, as in the table."""
    if shape.indexer is not None:
        return "sparse"
    return "grouped" if isinstance(shape.attention, GroupedAttentionSizes) else "latent"


def spread(errors: Sequence[float]) -> float:
    """Error that contains nine of ten further rows like these; the largest error if there are too few rows for that."""
    ordered = sorted(abs(error) for error in errors)
    at = math.ceil(CONTAINED * (len(ordered) + 1)) - 1
    return max(LEAST_SPREAD, ordered[min(at, len(ordered) - 1)])


def stated(asked: StepClass, rows: Sequence[CheckedRow], *, like_rows: bool = True) -> Stated:
    """The error to expect of a step.

    Args:
        rows: at least one of this kind of step.
        like_rows: whether the step is like those of its class; else the error follows from its neighbours alone.
    """
    same = [row for row in rows if row.kind == asked.kind]
    own = [row.error for row in same if row.step_class == asked]
    if like_rows and len(own) >= OWN_ROWS:
        return Stated(spread(own), f"{len(own)} rows of {asked.attention} attention with {asked.engine} here", False)
    near = {
        f"{asked.attention} attention": [row.error for row in same if row.attention == asked.attention],
        asked.device: [row.error for row in same if row.device == asked.device],
        asked.engine: [row.error for row in same if row.engine == asked.engine],
    }
    found = {name: errors for name, errors in near.items() if errors}
    if len(found) < len(near):
        found[f"all of {asked.kind}"] = [row.error for row in same]
    texts = (f"{name} {100 * spread(errors):.0f} % ({len(errors)})" for name, errors in found.items())
    return Stated(max(map(spread, found.values())), f"neighbours (rows): {', '.join(texts)}", True)


@lru_cache(maxsize=1)
def checked_rows() -> tuple[CheckedRow, ...]:
    """The table. Effects: reads its file once."""
    return tuple(
        CheckedRow(**{**cells, "error": float(cells["error"])})  # type: ignore[arg-type]
        for cells in csv.DictReader(io.StringIO(read_regular_text(TABLE)))
    )


@dataclass(frozen=True, slots=True)
class Coverage:
    """Stated errors of rows that were left out. `contained`: share of rows within theirs. `width`: the median one."""

    rows: int
    contained: float
    width: float


def coverage(rows: Sequence[CheckedRow], *, whole_class: bool) -> Coverage:
    """Judge stated errors by the table itself: each row by the others.

    Args:
        whole_class: leave out the row's whole class, so that only neighbours are left; else the row alone.
    """
    widths, held = [], 0
    for row in rows:
        others = [one for one in rows if (one.step_class != row.step_class if whole_class else one is not row)]
        width = stated(row.step_class, others).error
        widths.append(width)
        held += abs(row.error) <= width
    return Coverage(len(rows), held / len(rows), median(widths))


def table_text(rows: Iterable[CheckedRow]) -> str:
    """The table as a file."""
    out = io.StringIO()
    names = [field.name for field in fields(CheckedRow)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([f"{row.error:.3f}" if name == "error" else getattr(row, name) for name in names])
    return out.getvalue()
