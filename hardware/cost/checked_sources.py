"""Rows of `checked.csv` and their errors by the present cost model: those of devices, of other systems, of engines."""

from hardware.cost.calibrate import calibrate
from hardware.cost.checked import OF_GPUS, TABLE, CheckedRow, attention_kind, table_text
from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.engine_fit import judge
from hardware.cost.engine_profile import ENGINE_FOLDER, OWN_ENGINE, load_engine
from hardware.cost.measured_file import read_measured
from hardware.cost.published import PublishedRow, RowKind
from hardware.cost.published_systems import PREDICTED, R1_PREFILL, SystemDecode

DEVICE = "ascend-910c"
_STEPS = ("decode", "prefill", "context cache")
_INSIDE = ("us", "x")
"""Units of rows that no answer is about: parts of a step, and gains, whose errors partly cancel."""
HELD_BACK = ("sglang-ascend",)


def all_rows() -> list[CheckedRow]:
    """All rows. Effects: reads files; refits devices without each row, which takes a minute."""
    return [*device_rows(DEVICE), *device_rows("h100"), *device_rows("h800"), *system_rows(), *engine_rows()]


def device_rows(name: str) -> list[CheckedRow]:
    """Rows that a device was fitted to, each with the error that it has when it is left out."""
    engine, found = OWN_ENGINE if name == DEVICE else OF_GPUS, []
    for group in calibrate(load_device(name)).groups:
        for result in group.rows:
            row = result.row
            if row.group in _STEPS and row.unit not in _INSIDE:
                kind = "decode" if row.group == "decode" else "prefill"
                error = result.error if result.left_out is None else result.left_out
                found.append(CheckedRow(kind, name, "latent", engine, row.name, error))
    return found


def system_rows() -> list[CheckedRow]:
    """Other systems' rows that nothing was fitted to."""
    model = CostModel(load_device(DEVICE))
    return [system_row(row, model) for row in PREDICTED if row.kind is RowKind.PREDICTED]


def system_row(row: PublishedRow, model: CostModel) -> CheckedRow:
    """One of them."""
    case = row.predict
    decode = isinstance(case, SystemDecode)
    engine = getattr(case, "engine", "") or (OF_GPUS if model.device.name != case.device else "")  # type: ignore[attr-defined]
    engine = engine or ("cann-recipes" if row.source == R1_PREFILL else OWN_ENGINE)
    kind, attention = "decode" if decode else "prefill", attention_kind(case.shape)  # type: ignore[attr-defined]
    return CheckedRow(kind, case.device, attention, engine, row.name, row.error(model))  # type: ignore[attr-defined]


def engine_rows() -> list[CheckedRow]:
    """Rows that engines' profiles were not fitted to."""
    found = []
    for name in HELD_BACK:
        model = CostModel(load_device(DEVICE), engine=load_engine(name))
        for one in judge(model, read_measured(ENGINE_FOLDER / f"{name}.held-back.csv").rows):
            row = one.row
            found.append(CheckedRow(row.phase, DEVICE, "latent", name, row.source, one.error))
    return found


if __name__ == "__main__":
    TABLE.write_text(table_text(all_rows()), encoding="utf-8")
