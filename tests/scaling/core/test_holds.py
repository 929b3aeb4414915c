"""Holds expire by themselves, and survive the board."""

import pytest

from serving.cluster.gcs_store import KeptValues
from serving.scaling.core.holds import ScalingHold, ScalingHolds


def test_a_hold_ends_by_itself() -> None:
    holds = ScalingHolds()
    holds.set("decode", 60.0, "cli", now=100.0)
    assert holds.hold("decode", 159.0) == ScalingHold(160.0, "cli")
    assert holds.left_s("decode", 130.0) == 30.0
    assert holds.until(130.0) == {"decode": 160.0}
    assert holds.hold("decode", 160.0) is None
    assert holds.left_s("decode", 160.0) == 0.0
    assert holds.until(160.0) == {}


def test_no_time_releases() -> None:
    holds = ScalingHolds()
    holds.set("decode", 60.0, "cli", now=100.0)
    holds.set("decode", 0.0, "page", now=101.0)
    assert holds.hold("decode", 101.0) is None


def test_a_successor_knows_holds_and_targets() -> None:
    kept = KeptValues()
    holds = ScalingHolds(kept)
    holds.set("decode", 60.0, "cli", now=100.0)
    holds.aim("decode", 3)
    again = ScalingHolds(kept)
    assert again.hold("decode", 110.0) == ScalingHold(160.0, "cli")
    assert again.targets == {"decode": 3}


@pytest.mark.parametrize(
    "text", ["[]", '{"holds": {"decode": 3}}', '{"holds": 1}', '{"targets": {"decode": "x"}}', "{"]
)
def test_what_makes_no_sense_holds_nothing(text: str) -> None:
    kept = KeptValues()
    kept.set("holds", text.encode())
    holds = ScalingHolds(kept)
    assert (holds.until(0.0), holds.targets) == ({}, {})
    assert "cannot be read" in holds.warnings[0]
