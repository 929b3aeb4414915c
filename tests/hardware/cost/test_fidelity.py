"""The error table: every published row within its pinned tolerance, and the stated errors are the true ones."""

import pytest

from hardware.cost import CostModel, DecodeLoad, disaggregated, load_device, published_other
from hardware.cost.calibrate import Calibrated, RowResult
from hardware.cost.published import CACHE_ROWS, DECODE_ROWS, PREFILL_ROWS, PublishedRow, RowKind
from hardware.cost.published_other import GEMM_ROWS, H100_ROWS, H800_ROWS, LOADING_ROWS, XDEEPSERVE_ROWS, exchange_rows
from hardware.cost.published_systems import AFD_FITTED, CANN_FITTED, CANN_SEEN, H20_FITTED, PREDICTED

ASCEND_ROWS = (*DECODE_ROWS, *PREFILL_ROWS, *CACHE_ROWS, *GEMM_ROWS, *LOADING_ROWS, *XDEEPSERVE_ROWS)
ALLOWED_MISSES = {"throughput, 50 % over 12.5 %", "throughput, 90 % over none"}
"""Rows that the goals name and that cannot be met together; see their note."""


def name_of(row: PublishedRow) -> str:
    return f"{row.group}: {row.name}"


ROWS = {
    "ascend-910c": (*ASCEND_ROWS, *CANN_FITTED, *CANN_SEEN, *AFD_FITTED, *exchange_rows(load_device("ascend-910c"))),
    "h20": H20_FITTED,
    "h100": H100_ROWS,
    "h800": H800_ROWS,
}


@pytest.mark.parametrize("device", ROWS)
def test_every_row_is_within_its_tolerance(device: str) -> None:
    model = CostModel(load_device(device))
    errors = {name_of(row): (row.error(model), row.tolerance) for row in ROWS[device]}
    assert {name: both for name, both in errors.items() if not abs(both[0]) <= both[1]} == {}


def test_most_of_what_was_kept_back_is_predicted_within_10_percent(model: CostModel) -> None:
    errors = {row.name: row.error(model) for row in PREDICTED}
    assert all(row.kind is RowKind.PREDICTED for row in PREDICTED)
    assert sum(abs(error) <= 0.10 for error in errors.values()) >= 19, errors
    assert max(map(abs, errors.values())) < 0.18, errors


def test_the_published_split_is_the_best_one(model: CostModel) -> None:
    assert model.decode_step(DecodeLoad(48, 48 * 4096)).cube_split == 16 / 24


def test_tolerances_mean_something() -> None:
    fitted = [row for row in ASCEND_ROWS if row.kind is RowKind.FITTED and row.group != "xDeepServe"]
    assert max(row.tolerance for row in fitted if row.name not in ALLOWED_MISSES) <= 0.05
    assert len({name_of(row) for row in fitted}) == len(fitted)


def test_what_was_told_or_fitted_moves_no_predicted_row(model: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (*ASCEND_ROWS, *H100_ROWS, *H800_ROWS)
    assert {row.kind for row in rows} == set(RowKind) - {RowKind.QUOTED}
    before = [row.predict(model) for row in ASCEND_ROWS]
    for name in ("SCHEDULING_S", "MTP_LAYER_S"):
        monkeypatch.setattr(disaggregated, name, 1.5 * getattr(disaggregated, name))
    monkeypatch.setattr(published_other, "_XDS_CORE_S", 1.5 * published_other._XDS_CORE_S)  # its kernel's speed
    moved = [row for row, value in zip(ASCEND_ROWS, before, strict=True) if row.predict(model) != value]
    assert {row.kind for row in moved} <= {RowKind.FITTED, RowKind.DERIVED}
    assert {"split 480 : 288, 96 per die"} <= {row.name for row in moved}


def goal_rows(found: Calibrated) -> list[RowResult]:
    return [result for result in found.rows if result.row.group not in ("xDeepServe", "other systems")]


def test_the_goals_hold_but_for_the_named_rows_and_left_out_rows_are_predicted(ascend: Calibrated) -> None:
    missed = {result.row.name for result in goal_rows(ascend) if not result.met}
    assert missed <= ALLOWED_MISSES
    for result in goal_rows(ascend):
        if result.row.kind is RowKind.FITTED and result.row.name not in ALLOWED_MISSES:
            assert result.left_out is not None
            assert abs(result.left_out) <= 0.07, result.row.name


def test_every_missed_row_says_why(ascend: Calibrated, h100: Calibrated, h800: Calibrated) -> None:
    for found in (ascend, h100, h800):
        for result in found.rows:
            assert result.met or len(result.note) > 20, result.row.name
