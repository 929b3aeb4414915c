"""Numbers as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.report import numbers


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234.5, "1,234"), (0.012345, "0.0123"), (9.996, "10.0"), (-2.5, "-2.50")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert numbers.figure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (12.5, "12.5 s"), (60.0, "1:00"), (245.0, "4:05"), (3723.0, "1:02:03")]
)
def test_moments(seconds: float, text: str) -> None:
    assert numbers.clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 %"), (1.0, "100 %"), (0.5, "50.0 %"), (0.9996, "99.96 %"), (1e-9, "< 0.001 %")]
)
def test_shares(value: float, text: str) -> None:
    assert numbers.share(value) == text


@given(st.floats(1e-12, 1 - 1e-12))
def test_a_share_between_is_never_shown_as_all_or_nothing(value: float) -> None:
    assert numbers.share(value) not in ("0 %", "100 %", "0.0 %", "100.0 %")


@pytest.mark.parametrize("text", [numbers.figure, numbers.duration, numbers.clock, numbers.share])
def test_what_is_not_known_is_a_dash(text: object) -> None:
    assert callable(text)
    assert text(math.nan) == numbers.MISSING


def test_durations() -> None:
    assert [numbers.duration(value) for value in (84e-6, 0.0312, 1.2)] == ["84 µs", "31.2 ms", "1.2 s"]
