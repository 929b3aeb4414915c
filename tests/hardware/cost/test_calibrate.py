"""Calibration finds the values of the device files, from any start; the README has its output."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.accuracy import calibration_json, calibration_markdown, misses
from hardware.cost.calibrate import Calibrated, calibrate, has_rows
from hardware.cost.trust import decode_trust, prefill_trust

README = Path(__file__).parents[3] / "hardware/README.md"
BEGIN = "<!-- error-table: cloudmatrix cost --calibrate --markdown -->\n"
END = "<!-- /error-table -->"
_PERCENT = re.compile(r"([+-]\d+\.\d) %")
_LAST_DIGIT = 0.15
"""Percent: the search for the best parameters may end slightly differently on another processor."""


@pytest.mark.parametrize("name", ["ascend_", "h100", "h20", "h800"])
def test_the_file_holds_what_calibration_finds(name: str, request: pytest.FixtureRequest) -> None:
    found: Calibrated = request.getfixturevalue(name.removesuffix("_"))
    shipped = load_device(found.device.name)
    assert found.values
    for key, value in found.values.items():
        constant = shipped.constants[f"calibration.{key}"]
        assert constant.value == pytest.approx(value, rel=1e-3), key
        assert constant.status == "fitted"
        assert constant.source.startswith("fitted to ")
    fitted = {key for key, constant in shipped.constants.items() if constant.status == "fitted"}
    assert fitted == {f"calibration.{key}" for key in found.values}, "only calibration makes fitted values"


def test_the_result_does_not_depend_on_what_was_fitted_before(h100: Calibrated) -> None:
    device = load_device("h100")
    spoiled = replace(device.calibration, prefill_vector_s=5e-6, vector_value_s=9e-11)
    again = calibrate(replace(device, calibration=spoiled), leave_out=False)
    assert again.values == pytest.approx(h100.values)


def test_h200_takes_over_what_the_h100_gave(h100: Calibrated) -> None:
    assert calibrate(load_device("h200"), leave_out=False).values == {}
    calibration = load_device("h200").calibration
    for key, value in h100.values.items():
        assert getattr(calibration, key) == pytest.approx(value, rel=1e-3)
    assert load_device("h800").calibration.prefill_imbalance == pytest.approx(
        h100.values["prefill_imbalance"], rel=0.01
    )


def test_degrees_of_freedom_are_counted(ascend: Calibrated) -> None:
    decode = next(group for group in ascend.groups if group.title == "decode")
    assert len(decode.rows) == 14
    assert 4 < decode.effective < len(decode.frees) == 6
    assert decode.chosen == 1, "from which batch on the published engine has half batches"
    assert decode.degrees == pytest.approx(14 - decode.effective - 1)


def test_trust_depends_on_the_distance_from_published_points() -> None:
    cost = CostModel(load_device("ascend-910c"))
    near, far, further = (decode_trust(cost, batch, 4096).error for batch in (96, 256, 2048))
    assert near == 0.05
    assert near < far < further
    assert prefill_trust(cost, 8192, 4096).error == 0.05
    assert prefill_trust(cost, 100, 4096).error > 0.2
    assert "fitted to a few published rows" in decode_trust(CostModel(load_device("h800")), 96, 4096).text
    device = load_device("h200")
    assert not has_rows(device)
    cost = CostModel(device)
    for trust in (decode_trust(cost, 96, 4096), prefill_trust(cost, 8192, 4096)):
        assert 0.05 < trust.error < 0.5
        assert "not checked" in trust.text


def test_the_table_is_the_readme_s_and_names_every_row_and_every_miss(ascend: Calibrated) -> None:
    text = calibration_markdown(ascend)
    written = README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()
    printed = text.strip().splitlines()
    assert len(written) == len(printed), "paste what `cloudmatrix cost --calibrate --markdown` prints into it"
    for ours, theirs in zip(written, printed, strict=True):
        assert ours.split("|")[:3] == theirs.split("|")[:3] or not ours.startswith("|")
        errors, now = ([float(found) for found in _PERCENT.findall(line)] for line in (ours, theirs))
        assert errors == pytest.approx(now, abs=_LAST_DIGIT), f"{ours}\nis now\n{theirs}"
    for result in ascend.rows:
        assert f"| {result.row.name} |" in text
    assert len(misses(ascend)) >= 1
    for miss in misses(ascend):
        assert miss in text


def test_json_holds_the_same(ascend: Calibrated) -> None:
    answer = json.loads(json.dumps(calibration_json(ascend)))
    rows = [row for group in answer["groups"] for row in group["rows"]]
    assert [row["error"] for row in rows] == [result.error for result in ascend.rows]
    assert {p["name"] for group in answer["groups"] for p in group["parameters"]} == set(ascend.values)
