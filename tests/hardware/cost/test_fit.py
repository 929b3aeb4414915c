"""The solver finds identifiable parameters, and keeps the others at the prior."""

import math

import pytest

from hardware.cost.calibrate import Free, least_squares

WIDE = (Free("a", 1.0, 3.0, ""), Free("b", 1.0, 3.0, ""))


def curve(a: float, b: float) -> list[float]:
    return [a * math.exp(-b * x) for x in (0.1, 0.4, 0.9, 1.7, 2.5)]


def test_it_finds_the_parameters_of_a_curve() -> None:
    wanted = curve(3.0, 0.5)
    fit = least_squares(WIDE, lambda p: [m / w - 1 for m, w in zip(curve(*p), wanted, strict=True)], 1e-3)
    assert fit.values == pytest.approx((3.0, 0.5), rel=1e-3)
    assert fit.effective == pytest.approx(2.0, abs=0.01)


def test_parameters_that_no_row_tells_stay_at_their_priors() -> None:
    fit = least_squares(WIDE, lambda p: [p[0] / 3.0 - 1], 1e-3)
    assert fit.values == pytest.approx((3.0, 1.0), rel=1e-3)
    assert fit.effective == pytest.approx(1.0, abs=0.01)
    fit = least_squares(WIDE, lambda _: [], 0.02)
    assert fit.values == pytest.approx((1.0, 1.0))
    assert fit.effective == 0
    assert fit.loss == pytest.approx(0)
    tight = (Free("a", 1.0, 0.001, ""),)
    assert least_squares(tight, lambda p: [p[0] / 2 - 1], 0.5).values[0] == pytest.approx(1.0, rel=0.01)


def test_several_starts_leave_a_local_minimum() -> None:
    """Two valleys in log a: a shallow one at the prior, a deep one that another start reaches."""

    def errors(p: tuple[float, ...]) -> list[float]:
        x = math.log(p[0])
        return [min(0.5 + abs(x), abs(x - 3))]

    free = (Free("a", 1.0, 1e3, ""),)
    stuck = least_squares(free, errors, 1.0, wide=False)
    found = least_squares(free, errors, 1.0, [(math.exp(2.9),)], wide=False)
    assert found.loss < 1e-4 < stuck.loss
