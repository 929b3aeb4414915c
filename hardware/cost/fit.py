"""Small non-linear least squares: a handful of positive parameters, tens of rows, prior beliefs included.

Damped Gauss-Newton over the logarithms of the parameters. A prior is one more residual: how far a parameter is from
what was believed before, in units of its spread. It keeps a parameter that the remaining rows do not determine near its
prior, as leave-one-out requires. Starts at the priors, so that the result does not depend on earlier results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_STEPS = 60
_DIFFERENCE = 1e-4
_CONVERGED = 1e-7
_LONGEST = 0.5
_STUCK = 1e7

Vector = NDArray[np.float64]
Residuals = Callable[[Vector], Vector]


@dataclass(frozen=True, slots=True)
class Free:
    """A parameter to find.

    Attributes:
        name: of a calibration constant.
        prior: value believed before, above zero.
        spread: standard deviation of its logarithm; 0.3 = deviations of 30 % are normal.
        reason: why that belief.
    """

    name: str
    prior: float
    spread: float
    reason: str


@dataclass(frozen=True, slots=True)
class LeastSquaresFit:
    """Found values, in the order of the free parameters.

    Attributes:
        effective: effective number of parameters determined by the rows rather than the priors: between 0 and their
        number. loss: sum of squared residuals, priors included.
    """

    values: tuple[float, ...]
    effective: float
    loss: float


def least_squares(
    frees: Sequence[Free],
    errors: Callable[[tuple[float, ...]], Sequence[float]],
    row_spread: float,
    starts: Sequence[Sequence[float]] = (),
    *,
    wide: bool = True,
) -> LeastSquaresFit:
    """Find the parameters that make the errors small.

    The errors have kinks (an operator turns from memory-bound to compute-bound, a core changes streams), so that one
    start may end in a local minimum. Tried are the priors, `starts`, and if `wide` each prior moved by half a spread.

    Args:
        errors: relative error of each row for given parameter values.
        row_spread: normal relative error of a row.
        starts: further starting points.
    Returns: the fit with the smallest loss.
    Effects: none; calls `errors` some thousand times.
    """
    priors = np.log([free.prior for free in frees])
    spreads = np.array([free.spread for free in frees])

    def residuals(x: Vector) -> Vector:
        rows = np.asarray(errors(tuple(float(v) for v in np.exp(x))), dtype=float) / row_spread
        return np.concatenate([rows, (x - priors) / spreads])

    halves = 0.5 * np.diag(spreads)
    moved = [priors + sign * half for half in halves for sign in (-1, 1)] if wide else []
    found = [_descend(residuals, start) for start in (priors, *moved, *(np.log(start) for start in starts))]
    x, loss = min(found, key=lambda pair: pair[1])
    return LeastSquaresFit(tuple(math.exp(v) for v in x), _effective(residuals, x, spreads), loss)


def _descend(residuals: Residuals, start: Vector) -> tuple[Vector, float]:
    """Damped Gauss-Newton from one start: where it ends, and the loss there."""
    x, damping = start.copy(), 1e-3
    current = residuals(x)
    for _ in range(_STEPS):
        jacobian = _jacobian(residuals, x, current)
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ current
        while damping < _STUCK:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            step *= min(1.0, _LONGEST / float(np.abs(step).max() + 1e-30))
            trial = residuals(x + step)
            if trial @ trial < current @ current:
                break
            damping *= 6
        else:
            break
        gain = 1 - float(trial @ trial) / float(current @ current)
        x, current, damping = x + step, trial, max(damping / 6, 1e-6)
        if gain < _CONVERGED:
            break
    return x, float(current @ current)


def _jacobian(residuals: Residuals, x: Vector, base: Vector) -> Vector:
    """Central differences; [residuals, parameters]."""
    columns = []
    for index in range(len(x)):
        step = np.zeros_like(x)
        step[index] = _DIFFERENCE
        columns.append((residuals(x + step) - residuals(x - step)) / (2 * _DIFFERENCE))
    return np.stack(columns, axis=1).reshape(len(base), len(x))


def _effective(residuals: Residuals, x: Vector, spreads: Vector) -> float:
    """Trace of the rows' hat matrix: how many parameters the rows decide."""
    jacobian = _jacobian(residuals, x, residuals(x))
    rows = jacobian[: len(jacobian) - len(x)]
    information = rows.T @ rows
    return float(np.trace(np.linalg.solve(information + np.diag(spreads**-2.0), information)))
