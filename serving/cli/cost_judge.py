"""`cloudmatrix cost --judge`: an engine's predictions for measured steps outside its fit, each with its error."""

import argparse
import json
from pathlib import Path

from hardware.cost import CostModel
from hardware.cost.accuracy import percent
from hardware.cost.engine_judge import JudgedRow, judge
from hardware.cost.trust import engine_text_of
from serving.cli.cost_tables import plain_table
from serving.cli.measured_runs import measured_rows
from serving.terminal import table_console

_QUANTITIES = {"tpot_ms": ("TPOT {:,.3g} ms", 1), "step_ms": ("step {:,.4g} ms", 1)}
_RATE = ("{:,.0f} tokens/s a NPU", -1)


def judge_file(cost: CostModel, arguments: argparse.Namespace) -> int:
    """Predict each row and print the error and the predicted error bound.

    Args:
        cost: of the device and model of the rows, with the engine to judge.
    Returns: exit code.
    Raises: ConfigError, SpecError; a bad row gives one line.
    Effects: reads the rows, prints.
    """
    source, per_npu = Path(arguments.judge), cost.device.die.per_npu
    rows = judge(cost, measured_rows(source, arguments.dies, per_npu, flag="--judge").rows)
    if arguments.json:
        print(json.dumps([_as_json(one) for one in rows], indent=2))
        return 0
    console = table_console()
    console.print(f"engine: {engine_text_of(cost)}", highlight=False)
    table = plain_table("row", ">measured", ">predicted", ">error", ">expected", "source")
    for one in rows:
        expected = "not stated" if one.trust.error is None else f"within {100 * one.trust.error:.0f} %"
        measured, predicted = _quantities(one)
        missed = " !" if one.held is False else ""
        table.add_row(_place(one), measured, predicted, percent(one.error) + missed, expected, one.row.source)
    console.print(table)
    stated = [one for one in rows if one.held is not None]
    worst = max(rows, key=lambda one: abs(one.error))
    console.print(
        f"{sum(one.held is True for one in stated)} of {len(stated)} rows within their stated error; the largest "
        f"error is {percent(worst.error)}, of {_place(worst)}",
        highlight=False,
    )
    return 0


def _place(one: JudgedRow) -> str:
    """File and line, without folders."""
    return one.row.place.rpartition("/")[2]


def _quantities(one: JudgedRow) -> tuple[str, str]:
    """Measured and predicted value in the row's own unit; the error of a rate is the inverse of a time's."""
    name = next(key for key in ("tpot_ms", "step_ms", "tokens_per_s_per_npu") if key in one.row.values)
    text, power = _QUANTITIES.get(name, _RATE)
    value = one.row.values[name]
    return text.format(value), text.format(value * (one.predicted_s / one.measured_s) ** power)


def _as_json(one: JudgedRow) -> dict[str, object]:
    return {
        "row": one.row.place,
        "measured_s": one.measured_s,
        "predicted_s": one.predicted_s,
        "error": one.error,
        "expected_error": one.trust.error,
        "held": one.held,
        "source": one.row.source,
    }
