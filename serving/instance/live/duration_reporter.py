"""Durations that an engine loop sends its gateways, ahead of the news that they belong to."""

from collections.abc import Callable

from serving.instance.core import events as e
from serving.instance.core.visit_timer import VisitTimer
from serving.values.visit_times import StepTime, VisitTimes


class DurationReporter:
    """Watches one engine's events on behalf of its loop; belongs to whoever holds the engine.

    Args:
        predicted_s: time of real NPUs for all steps so far [s].
    """

    def __init__(self, predicted_s: Callable[[], float]) -> None:
        self._predicted_s = predicted_s
        self._so_far_s = 0.0
        self._timer = VisitTimer()

    def note(
        self, event: e.EngineEvent, effects: list[e.EngineEffect], now: float, busy_s: float
    ) -> list[VisitTimes | StepTime]:
        """Take an event, and what came of it.

        Args:
            busy_s: time spent in steps so far, one that the event ends included [s].
        Returns: what is to be sent ahead of the effects.
        """
        if not isinstance(event, e.StepDone | e.StepFollowed):
            return [*self._timer.watch(event, effects, now)]
        total_s = self._predicted_s()
        predicted_s, self._so_far_s = total_s - self._so_far_s, total_s
        visits = self._timer.watch(event, effects, now, predicted_s)
        if not effects:
            return [*visits]
        return [StepTime(now, busy_s, event.result.elapsed_s, predicted_s), *visits]
