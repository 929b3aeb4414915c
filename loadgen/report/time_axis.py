"""Charts over the time of a run: one axis for all of them, with what happened marked in each."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report.chart import Axis, Limit, Line, LineChart, Marks, tidy


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """From the run's start to `end_s`. Charts share the cursor: a moment has the same position in all of them."""

    end_s: float
    marks: Sequence[Marks] = ()
    group: str = "time"

    @property
    def x(self) -> Axis:
        """The axis itself."""
        return Axis(unit="clock", low=0.0, high=self.end_s)

    def chart(
        self,
        chart_id: str,
        title: str,
        xs: Sequence[float],
        lines: Sequence[Line],
        unit: str,
        *,
        limits: Sequence[Limit] = (),
    ) -> LineChart:
        """Curves over this axis, as small as a plot needs them."""
        return tidy(
            LineChart(
                id=chart_id,
                title=title,
                x=self.x,
                y=Axis(unit=unit),
                xs=list(xs),
                lines=list(lines),
                limits=list(limits),
                marks=[one for one in self.marks if one.xs],
                group=self.group,
            )
        )
