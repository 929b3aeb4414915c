"""Values that change over the loop: an attribute with its SMIL animation, or its value at one moment."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Steps = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Motion:
    """The loop. Args: end_s: its length. at_s: the single moment to draw; None = all of it, animated."""

    end_s: float
    at_s: float | None = None

    def steps(self, attribute: str, steps: Steps) -> tuple[str, str]:
        """An attribute that changes in steps.

        Args:
            steps: ascending moments, each with the value from then on; the first one is also the initial value.
        Returns: the attribute, and the content of the element.
        """
        kept = [step for place, step in enumerate(steps) if not place or step[1] != steps[place - 1][1]]
        value = kept[0][1]
        if self.at_s is not None:
            now = [one for at, one in kept if at <= self.at_s]
            return f'{attribute}="{now[-1] if now else value}"', ""
        if len(kept) == 1:
            return f'{attribute}="{value}"', ""
        times = [0.0, *(at / self.end_s for at, _ in kept[1:])]
        return f'{attribute}="{value}"', self._animate(attribute, [one for _, one in kept], times, "discrete")

    def line(self, attribute: str, points: Sequence[tuple[float, float]]) -> tuple[str, str]:
        """An attribute that changes linearly between moments; the first is 0, the last the loop's end."""
        if self.at_s is not None:
            return f'{attribute}="{number(_between(points, self.at_s))}"', ""
        values, times = [number(value) for _, value in points], [at / self.end_s for at, _ in points]
        return f'{attribute}="{values[0]}"', self._animate(attribute, values, times, "linear")

    def blink(self, values: str, period_s: float) -> str:
        """Opacity that alternates all the time; constant in a still picture."""
        if self.at_s is not None:
            return ""
        return (
            f'<animate attributeName="opacity" values="{values}" dur="{number(period_s)}s" repeatCount="indefinite"/>'
        )

    def shown(self, since_s: float, until_s: float | None = None) -> tuple[str, str]:
        """Opacity of an element visible from one moment to another, or to the end."""
        steps = [(0.0, "0"), (since_s, "1")] if since_s > 0 else [(0.0, "1")]
        return self.steps("opacity", [*steps, *([(until_s, "0")] if until_s is not None else [])])

    def _animate(self, attribute: str, values: Sequence[str], times: Sequence[float], mode: str) -> str:
        keys = ";".join(f"{min(max(time, 0.0), 1.0):.4f}".rstrip("0").rstrip(".") for time in times)
        return (
            f'<animate attributeName="{attribute}" calcMode="{mode}" values="{";".join(values)}" keyTimes="{keys}" '
            f'dur="{number(self.end_s)}s" repeatCount="indefinite"/>'
        )


def number(value: float) -> str:
    """A number with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    for (start, low), (end, high) in itertools.pairwise(points):
        if start <= at <= end:
            return low + (high - low) * (at - start) / ((end - start) or 1.0)
    return points[-1][1] if at > points[-1][0] else points[0][1]
