"""Stated errors, judged by the published rows themselves: each row by the error that all others would state for it."""

from hardware.cost.checked import CONTAINED, checked_rows, coverage
from hardware.cost.published import RowKind
from serving.tools.paper.experiment import Experiment, Findings, How, Row, Setting

_SOURCE = "goal of this project, not a published figure"
_WIDTH = 15.0


def run_stated(_setting: Setting) -> Findings:
    """Rows of `hardware/cost/checked.csv`, left out one by one, and class by class."""
    rows = checked_rows()
    one, whole = (coverage(rows, whole_class=whole_class) for whole_class in (False, True))
    found = [
        row
        for key, name, judged in (("row", "each row by all others", one), ("class", "each by other classes", whole))
        for row in (
            Row(f"{key}-held", f"rows within their stated error, {name}", 100 * CONTAINED, 100 * judged.contained, "%",
                How.MODEL, _SOURCE, RowKind.DERIVED, relation=">", headline=key == "row"),
            Row(f"{key}-width", f"median stated error, {name}", _WIDTH, 100 * judged.width, "%", How.MODEL, _SOURCE,
                RowKind.DERIVED, relation="<", headline=key == "row"),
        )
    ]  # fmt: skip
    classes = sorted({(row.kind, row.device, row.attention, row.engine) for row in rows})
    note = (
        f"{len(rows)} rows in {len(classes)} classes: kind of step, device, attention, engine. A class with rows of "
        "its own gets their spread, any other one the widest of its neighbours'. Rows that a device was fitted to "
        "count with the error that they have when they are left out."
    )
    return Findings(found, (note,))


STATED = Experiment(
    "other-errors", "Stated errors: do they contain the published rows", "leave-one-out over the table", run_stated
)
