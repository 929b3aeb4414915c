"""Durations in the reasons of decisions."""

import pytest

from serving.scaling.core.node_room import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90 s"), (600, "10 min"), (7200, "2 h"), (7260, "121 min"), (0.4, "0 s")]
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
