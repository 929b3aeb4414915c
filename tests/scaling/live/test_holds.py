"""Holds end by themselves, and survive the board."""

from pathlib import Path

import pytest

from serving.scaling.live.holds import ScalingHold, ScalingHolds


def test_a_hold_ends_by_itself() -> None:
    holds = ScalingHolds(None)
    holds.set("decode", 60.0, "cli", now=100.0)
    assert holds.hold("decode", 159.0) == ScalingHold(160.0, "cli")
    assert holds.left_s("decode", 130.0) == 30.0
    assert holds.until(130.0) == {"decode": 160.0}
    assert holds.hold("decode", 160.0) is None
    assert holds.left_s("decode", 160.0) == 0.0
    assert holds.until(160.0) == {}


def test_no_time_releases() -> None:
    holds = ScalingHolds(None)
    holds.set("decode", 60.0, "cli", now=100.0)
    holds.set("decode", 0.0, "page", now=101.0)
    assert holds.hold("decode", 101.0) is None


def test_a_successor_knows_holds_and_targets(tmp_path: Path) -> None:
    path = tmp_path / "holds.json"
    holds = ScalingHolds(path)
    holds.set("decode", 60.0, "cli", now=100.0)
    holds.aim("decode", 3)
    again = ScalingHolds(path)
    assert again.hold("decode", 110.0) == ScalingHold(160.0, "cli")
    assert again.targets == {"decode": 3}


@pytest.mark.parametrize("text", ["", "[]", '{"holds": {"decode": 3}}', '{"holds": 1}', '{"targets": {"decode": "x"}}'])
def test_a_damaged_file_holds_nothing(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "holds.json"
    path.write_text(text)
    assert ScalingHolds(path).until(0.0) == {}
    assert "cannot be read" in caplog.text


def test_a_disk_that_refuses_costs_nothing_but_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holds = ScalingHolds(tmp_path / "gone" / "holds.json")
    holds.set("decode", 60.0, "cli", now=100.0)
    assert holds.hold("decode", 100.0) is not None
    assert "not on disk" in caplog.text
