"""Input and output types of an engine loop, other than commands."""

from collections.abc import Callable

from serving.instance.core import events as e
from serving.instance.core.events import EngineEvent, HandoffClosed
from serving.instance.core.visit_timer import VisitTimer
from serving.values.expert_map import NO_SESSIONS, SessionTimes
from serving.values.news import News
from serving.values.visit_times import StepTime, VisitTimes

LoopEvent = News | HandoffClosed | VisitTimes | StepTime
Post = Callable[[EngineEvent], None]
"""Passes an event to an engine; callable from any thread, returns immediately. See `EngineLoop.post`."""


# Durations that an engine loop sends to gateways, before the events to which they belong.


class DurationReporter:
    """Measures durations from one engine's events for its loop; protected by the engine's lock.

    Args:
        predicted_s: time of real NPUs for all steps so far [s].
        sessions: of all steps of a rank so far; None = no rank.
    """

    def __init__(self, predicted_s: Callable[[], float], sessions: Callable[[], SessionTimes] | None = None) -> None:
        self._predicted_s, self._sessions = predicted_s, sessions
        self._so_far_s, self._sessions_so_far = 0.0, NO_SESSIONS
        self._timer = VisitTimer()

    def note(
        self, event: e.EngineEvent, effects: list[e.EngineEffect], now: float, busy_s: float
    ) -> list[VisitTimes | StepTime]:
        """Observe an event and its effects.

        Args:
            busy_s: total time spent in steps, including one that the event ends [s].
        Returns: events to send before the effects.
        """
        if not isinstance(event, e.StepDone | e.StepFollowed):
            return [*self._timer.watch(event, effects, now)]
        total_s = self._predicted_s()
        predicted_s, self._so_far_s = total_s - self._so_far_s, total_s
        visits = self._timer.watch(event, effects, now, predicted_s)
        if not effects:
            return [*visits]
        sessions = NO_SESSIONS
        if self._sessions is not None:
            total = self._sessions()
            sessions, self._sessions_so_far = total.since(self._sessions_so_far), total
        return [StepTime(now, busy_s, event.result.elapsed_s, predicted_s, sessions), *visits]
