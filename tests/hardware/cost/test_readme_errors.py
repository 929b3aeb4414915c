"""The error table of hardware/README.md is the one that the calibration prints."""

import re
from pathlib import Path

import pytest

from hardware.cost import load_device
from hardware.cost.accuracy import calibration_markdown
from hardware.cost.calibrate import calibrate

README = Path(__file__).parents[3] / "hardware/README.md"
BEGIN = "<!-- error-table: cloudmatrix cost --calibrate --markdown -->\n"
END = "<!-- /error-table -->"
_PERCENT = re.compile(r"([+-]\d+\.\d) %")
_LAST_DIGIT = 0.15
"""Percent: the search for the best parameters may end a little elsewhere on another processor."""


def test_the_readme_holds_this_table() -> None:
    written = README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()
    printed = calibration_markdown(calibrate(load_device("ascend-910c"))).strip().splitlines()
    assert len(written) == len(printed), "paste what `cloudmatrix cost --calibrate --markdown` prints into it"
    for ours, theirs in zip(written, printed, strict=True):
        assert ours.split("|")[:3] == theirs.split("|")[:3] or not ours.startswith("|")
        errors, now = ([float(found) for found in _PERCENT.findall(line)] for line in (ours, theirs))
        assert errors == pytest.approx(now, abs=_LAST_DIGIT), f"{ours}\nis now\n{theirs}"
