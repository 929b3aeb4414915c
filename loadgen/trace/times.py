"""Times of a trace as seconds from its start, and whether they make sense as that.

Plausible offsets are used unchanged. Dates, times since 1970 and a first time far from the start count from the first
request instead, which the trace's notes report. All else is refused: negative, no number, not ascending, or so late
that another unit must be meant.
"""

import math
from datetime import UTC, datetime
from pathlib import Path

from loadgen.errors import TraceFormatError
from loadgen.trace.lines import trace_error

LATEST_FIRST_S = 86_400.0
"""A first request later than this is too far from the trace's start to wait for it."""
LONGEST_S = 400 * 86_400.0
"""Beyond this a time is in another unit, or counts from another day; the longest published trace has 121 days."""
_EPOCH = ((1.0, "seconds"), (1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds"))
_EPOCH_FROM_S, _EPOCH_TO_S = 1e9, 4e9
"""Since 1970: 2001 to 2096."""
_UNITS = {1.0: "seconds", 1000.0: "milliseconds"}


class TraceTimes:
    """Reads the times of one file, in the order of its lines."""

    def __init__(self, path: Path, notes: dict[str, str], *, per_s: float = 1.0, dates_expected: bool = False) -> None:
        """State before the first line.

        Args:
            notes: receives remarks about the times. per_s: units in a second.
            dates_expected: the format has dates, so they need no remark.
        """
        self._path = path
        self._notes = notes
        self._per_s = per_s
        self._asked = _UNITS[per_s]
        self._dates_expected = dates_expected
        self._begun = False
        self._origin: datetime | float = 0.0
        self._before_s = 0.0

    def seconds(self, number: int, value: float | str) -> float:
        """The time of a line [s from the start].

        Raises: TraceFormatError naming the line, if it has none, or one before that of the previous line.
        """
        if not self._begun:
            self._begin(number, value)
        if isinstance(self._origin, datetime):
            at_s = (self._moment(number, value) - self._origin).total_seconds()
        elif isinstance(value, str):
            raise trace_error(self._path, number, f"a date {value!r} among numbers; write all times in one way")
        else:
            at_s = value / self._per_s - self._origin
        if not self._before_s <= at_s <= LONGEST_S:
            raise self._refused(number, at_s)
        self._before_s = at_s
        return at_s

    def _refused(self, number: int, at_s: float) -> TraceFormatError:
        """Why a time is none."""
        if not math.isfinite(at_s) or (at_s < 0 and not self._origin):
            return trace_error(
                self._path, number, f"an arrival at {at_s:g} s; times count from 0, the trace's beginning: add to all"
            )
        if at_s > LONGEST_S:
            return trace_error(
                self._path,
                number,
                f"an arrival {at_s / 86_400:g} days after the start; times are {self._asked} from there: subtract the "
                "first, or divide by 1000 if they are finer",
            )
        return trace_error(
            self._path,
            number,
            f"arrives at {at_s:g} s, after a line that arrives at {self._before_s:g} s; sort by time",
        )

    def _begin(self, number: int, value: float | str) -> None:
        """Determine the kind of all times from the first one.

        Raises: TraceFormatError.
        """
        self._begun = True
        if isinstance(value, str):
            self._origin = self._moment(number, value)
            if not self._dates_expected:
                self._say(f"times are dates; they count from the first, {value.strip()}")
            return
        epoch = [(per_s, name) for per_s, name in _EPOCH if _EPOCH_FROM_S * per_s <= value < _EPOCH_TO_S * per_s]
        if epoch:
            self._begin_epoch(number, value, *epoch[0])
        elif LATEST_FIRST_S < value / self._per_s <= LONGEST_S:
            self._origin = value / self._per_s
            self._say(
                f"the first request comes {self._origin / 86_400:.1f} days after the start; times count from it instead"
            )

    def _begin_epoch(self, number: int, value: float, per_s: float, name: str) -> None:
        """Count from the first of times since 1970.

        Raises: TraceFormatError if they are also plausible in the requested unit.
        """
        if per_s < self._per_s:
            raise trace_error(
                self._path,
                number,
                f"a first time of {value:.0f}: {name} since 1970, where {self._asked} are asked? Multiply by "
                f"{self._per_s / per_s:.0f} if so, else subtract the first",
            )
        self._per_s = per_s
        self._origin = value / per_s
        at = datetime.fromtimestamp(self._origin, UTC)
        self._say(f"times are {name} since 1970; they count from the first, {at:%Y-%m-%d %H:%M:%S} UTC")

    def _moment(self, number: int, value: float | str) -> datetime:
        """A date with its time; one without a zone is UTC.

        Raises: TraceFormatError.
        """
        if not isinstance(value, str):
            raise trace_error(self._path, number, f"a number {value:g} among dates; write all times in one way")
        try:
            at = datetime.fromisoformat(value.strip())  # takes Azure's seventh decimal, and drops it
        except ValueError:
            raise trace_error(
                self._path, number, f"{value.strip()!r} is no time; write {self._asked} or 2024-05-10 18:15:46.68"
            ) from None
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def _say(self, note: str) -> None:
        self._notes["times"] = note
