"""Axes that read well: ticks at round values of their unit, labels in that unit."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from serving.sim.report import numbers

Unit = Literal["count", "seconds", "clock", "share"]

_CLOCK_STEPS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
    7200, 14400, 28800, 43200, 86400,
)  # fmt: skip
_CLOCK_TICKS = 6
_MINUTE_S = 60
_LOG_FROM = 20.0
"""Values that span more than this are shown on a logarithmic axis."""


def format_axis(axis: Axis, unit: Unit, *, ticks: int = 5, whole: bool = False) -> None:
    """Ticks and labels of an axis whose limits are set already.

    Args:
        whole: only whole numbers have ticks.
    """
    if unit == "clock":
        low, high = axis.get_view_interval()
        step = clock_step(float(high) - float(low))
        axis.set_major_locator(
            FixedLocator([step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)])
        )
    elif axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(numticks=ticks))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))
    text = _TEXTS[unit]
    axis.set_major_formatter(FuncFormatter(lambda value, position: text(value)))


def clock_step(span_s: float) -> float:
    """Distance of ticks on an axis of time [s]: whole seconds, minutes, hours."""
    for step in _CLOCK_STEPS_S:
        if span_s <= step * _CLOCK_TICKS:
            return step
    return math.ceil(span_s / _CLOCK_TICKS / _CLOCK_STEPS_S[-1]) * _CLOCK_STEPS_S[-1]


def wants_log(low: float, high: float) -> bool:
    """Whether values from `low` to `high` are seen better on a logarithmic axis."""
    return low > 0 and high / low > _LOG_FROM


def from_zero(axes: Axes, highest: float, *, least: float = 0.0) -> None:
    """Let y begin at 0 and end a little above the highest value."""
    top = max(highest if math.isfinite(highest) else 0.0, least)
    axes.set_ylim(0, 1.08 * top if top > 0 else 1.0)


def compact(value: float) -> str:
    """A count in little room: 950, 1.5k, 20M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{letter}"
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    return "0" if value == 0 else numbers.duration(value)


def _clock(value: float) -> str:
    moment = float(np.round(value, 9))
    return "0" if moment == 0 else f"{moment:g} s" if abs(moment) < _MINUTE_S else numbers.clock(moment)


def _share(value: float) -> str:
    return f"{100 * value:.4g} %"


_TEXTS: dict[Unit, Callable[[float], str]] = {"count": compact, "seconds": _seconds, "clock": _clock, "share": _share}
