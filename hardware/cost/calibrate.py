"""Calibration as code: refit the free parameters to the published rows, and report the errors.

Groups are fitted one after the other: matrix products, then decode, then prefill with the context cache. Each row
gets two errors: of the fit to all rows, and of the fit to all others (leave-one-out), which estimates the error of an
unpublished value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hardware.cost.cost_model import CostModel
from hardware.cost.device_model import DeviceModel, ExpertTable
from hardware.cost.exchange import combine_line, dispatch_line
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape
from hardware.cost.published import CACHE_ROWS, DECODE_ROWS, PREFILL_ROWS, PublishedRow, RowKind
from hardware.cost.published_other import GEMM_ROWS, H100_ROWS, H800_ROWS, LOADING_ROWS, XDEEPSERVE_ROWS, exchange_rows
from hardware.cost.published_systems import CANN_FITTED, H20_FITTED

# Small non-linear least squares: a handful of positive parameters, tens of rows, prior beliefs included.
#
# Damped Gauss-Newton over the logarithms of the parameters. A prior is one more residual: how far a parameter is from
# what was believed before, in units of its spread. It keeps a parameter that the remaining rows do not determine near
# its prior, as leave-one-out requires. Starts at the priors, so that the result does not depend on earlier results.

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


# Calibration as code: refit the free parameters to the published rows, and report the errors.

ROW_SPREAD = 0.02
"""Normal error of a row: values are printed with two or three digits, and read off averages."""
GOAL = 0.05
LEFT_OUT_GOAL = 0.07


@dataclass(frozen=True, slots=True)
class FitGroup:
    """Rows that share free parameters.

    Attributes:
        chosen: further numbers that no fit found, but that were set so that the rows are met.
    """

    title: str
    rows: tuple[PublishedRow, ...]
    frees: tuple[Free, ...]
    chosen: int = 0


_DECODE_FREES = (
    Free("weight_memory_efficiency", 0.73, 0.15, "between msmodeling's 0.6 and the published 0.841 of attention"),
    Free("vector_value_s", 3.8e-12, 0.4, "xDeepServe's 'others', about 1.5 us per token and layer, of 396,000 values"),
    Free("core_utilisation_single", 0.57, 0.2, "half the query rows per tile of 0.695"),
    Free("expert_spread", 0.05, 0.5, "a few per cent are left after balancing"),
    Free("sampling_s", 30e-6, 0.5, "about 6 ms outside of layers at batch 96"),
    Free("step_start_s", 0.5e-3, 1.0, "less than one graph launch of 0.6 to 0.8 ms"),
)
_PREFILL_FREES = (
    Free("prefill_vector_s", 1.5e-6, 0.3, "xDeepServe's 'others', about 1.5 us per token and layer"),
    Free("prefill_hidden_vector_s", 0.3e-6, 0.5, "a fifth of it: reordering and weighted sum"),
    Free("prefill_imbalance", 1.6, 0.3, "found on the H100 with the same number of redundant experts"),
    Free("pool_load_bytes_per_s", 1.7e9, 0.5, "what the published TTFT at 50 % and 90 % reuse needs"),
)
_CANN_FREES = (
    Free("indexer_start_s", 5e-6, 0.7, "as long as a fused kernel"),
    Free("packed_memory_efficiency", 0.55, 0.3, "below 8-bit weights: vector cores unpack, and write what cubes read"),
    Free("own_prompts_factor", 1.0, 1.0, "as where prompts are divided"),
)
_GPU_DECODE_FREES = (Free("vector_value_s", 5e-12, 0.5, "as found for the Ascend 910C"),)
_H20_FREES = (
    Free("far_exchange_s", 50e-6, 1.0, "below the 118 us of 128 tokens over two nodes"),
    Free("draft_start_s", 3e-3, 0.7, "a few graph launches of 0.6 to 0.8 ms"),
)
_H100_PREFILL_FREES = (
    Free("prefill_vector_s", 0.6e-6, 0.3, "half of the Ascend 910C's: twice the memory rate"),
    Free("prefill_imbalance", 1.6, 0.3, "default against perfect: 6,288 to 7,417"),
)
_GROUPS: dict[str, tuple[FitGroup, ...]] = {
    "ascend-910c": (
        FitGroup("INT8 products", GEMM_ROWS, (Free("gemm_utilisation", 0.8, 0.1, "published 0.774 to 0.827"),)),
        FitGroup("decode", DECODE_ROWS, _DECODE_FREES, chosen=1),  # PUBLISHED_HALVES_FROM
        FitGroup("prefill and context cache", PREFILL_ROWS + CACHE_ROWS, _PREFILL_FREES),
        FitGroup("kernels of the CANN recipes", CANN_FITTED, _CANN_FREES),
        FitGroup("model loading, hand-off", LOADING_ROWS, ()),
        FitGroup("xDeepServe", XDEEPSERVE_ROWS, ()),
    ),
    "h20": (FitGroup("decode", H20_FITTED, _H20_FREES),),
    "h100": (
        FitGroup("prefill", tuple(row for row in H100_ROWS if row.group == "prefill"), _H100_PREFILL_FREES),
        FitGroup("decode", tuple(row for row in H100_ROWS if row.group == "decode"), _GPU_DECODE_FREES),
    ),
    "h800": (
        FitGroup("prefill", tuple(row for row in H800_ROWS if row.group == "prefill"), _H100_PREFILL_FREES[:1]),
        FitGroup("decode", tuple(row for row in H800_ROWS if row.group == "decode"), _GPU_DECODE_FREES),
    ),
}


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row after calibration.

    Attributes:
        error: relative, fitted to all rows.
        left_out: relative, fitted to all other rows; None for rows that calibration does not use.
        note: why the goal is missed, if it is.
    """

    row: PublishedRow
    predicted: float
    error: float
    left_out: float | None
    note: str

    @property
    def met(self) -> bool:
        """Within 5 %, and 7 % when left out."""
        return abs(self.error) <= GOAL and (self.left_out is None or abs(self.left_out) <= LEFT_OUT_GOAL)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One group after calibration.

    Attributes:
        values: found, by name of the calibration constant.
        effective: parameters that the rows decided; the priors decided the rest.
        chosen: as in `FitGroup`.
        degrees: rows less effective and chosen parameters.
    """

    title: str
    frees: tuple[Free, ...]
    values: dict[str, float]
    effective: float
    degrees: float
    rows: tuple[RowResult, ...]
    chosen: int = 0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Result of a calibration. `device` has the new values."""

    device: DeviceModel
    groups: tuple[GroupResult, ...]

    @property
    def values(self) -> dict[str, float]:
        """All found values."""
        return {name: value for group in self.groups for name, value in group.values.items()}

    @property
    def rows(self) -> tuple[RowResult, ...]:
        """All rows."""
        return tuple(row for group in self.groups for row in group.rows)


def has_rows(device: DeviceModel) -> bool:
    """Whether anything was published for a device; without rows its predictions are not checked."""
    return device.name in _GROUPS


def calibrate(device: DeviceModel, shape: ModelShape = DEEPSEEK_R1, *, leave_out: bool = True) -> Calibrated:
    """Refit a device's free parameters.

    Args:
        device: its fitted values do not matter, all else does. Without published rows only its table of exchanges is
            judged.
        leave_out: compute leave-one-out errors too, which is most of the work.
    Effects: none; takes some seconds.
    """
    groups = []
    for group in _GROUPS.get(device.name, ()):
        result = _fit_group(device, shape, group, leave_out)
        device = replace(device, calibration=replace(device.calibration, **result.values))
        groups.append(result)
    return Calibrated(device, (*groups, _judge_exchange(device, shape)))


def _fit_group(device: DeviceModel, shape: ModelShape, group: FitGroup, leave_out: bool) -> GroupResult:
    fitted = tuple(row for row in group.rows if row.kind is RowKind.FITTED) if group.frees else ()
    model = CostModel(device, shape)
    found: tuple[float, ...] = ()
    effective = 0.0
    if group.frees:
        fit = least_squares(group.frees, _errors(device, shape, group.frees, fitted), ROW_SPREAD)
        found, effective = fit.values, fit.effective
        model = _model(device, shape, group.frees, found)
    results = []
    for row in group.rows:
        error, left_out = row.error(model), None
        if row in fitted and leave_out and len(fitted) > max(1, len(group.frees)):
            others = tuple(other for other in fitted if other is not row)
            errors = _errors(device, shape, group.frees, others)
            without = least_squares(group.frees, errors, ROW_SPREAD, [found], wide=False)
            left_out = row.error(_model(device, shape, group.frees, without.values))
        results.append(_result(row, model, error, left_out))
    values = {free.name: value for free, value in zip(group.frees, found, strict=True)}
    degrees = len(fitted) - effective - group.chosen
    return GroupResult(group.title, group.frees, values, effective, degrees, tuple(results), group.chosen)


def _result(row: PublishedRow, model: CostModel, error: float, left_out: float | None) -> RowResult:
    result = RowResult(row, row.predict(model), error, left_out, "")
    return result if result.met else replace(result, note=row.note or "reason unknown")


def _model(device: DeviceModel, shape: ModelShape, frees: Sequence[Free], values: Sequence[float]) -> CostModel:
    new = {free.name: value for free, value in zip(frees, values, strict=True)}
    return CostModel(replace(device, calibration=replace(device.calibration, **new)), shape)


def _errors(
    device: DeviceModel, shape: ModelShape, frees: Sequence[Free], rows: Sequence[PublishedRow]
) -> Callable[[tuple[float, ...]], list[float]]:
    def errors(values: tuple[float, ...]) -> list[float]:
        model = _model(device, shape, frees, values)
        return [row.error(model) for row in rows]

    return errors


def _judge_exchange(device: DeviceModel, shape: ModelShape) -> GroupResult:
    """The table of exchanges against its line, and each entry against the table without it."""
    model = CostModel(device, shape)
    rows = []
    for index, row in enumerate(exchange_rows(device)):
        table = _without(device.experts, index // 2)
        line = dispatch_line(table) if index % 2 == 0 else combine_line(table)
        left_out = line.seconds(device.experts.degrees[index // 2]) * 1e6 / row.published - 1
        rows.append(_result(row, model, row.error(model), left_out))
    return GroupResult("dispatch and combine, line through the table", (), {}, 4.0, len(rows) - 4.0, tuple(rows))


def _without(table: ExpertTable, index: int) -> ExpertTable:
    def drop(values: tuple) -> tuple:  # type: ignore[type-arg]
        return values[:index] + values[index + 1 :]

    return replace(
        table, degrees=drop(table.degrees), dispatch_s=drop(table.dispatch_s), combine_s=drop(table.combine_s)
    )
