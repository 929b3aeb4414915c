"""Durations that an instance measures of a sequence's visit, on its own clock, for the request's timeline.

    Add    queue │ pool get │ wait │ prefill │ wait │ prefill ··· │ checksums ──► first token
    Adopt  queue │ handoff │ wait │ decode ──► first token there

Only durations are sent, and readings that are compared with readings of the same clock: the clocks of two hosts are
never compared.
"""

from serving.ids import SequenceId
from serving.values.expert_map import NO_SESSIONS, SessionTimes
from serving.values.news import Value

QUEUE = "queue"
POOL_GET = "pool get"
WAIT = "wait"
PREFILL = "prefill"
CHECKSUMS = "checksums"
HANDOFF = "handoff"
DECODE = "decode"


class Leg(Value, frozen=True, gc=False):
    """One part of a visit.

    Args:
        seconds: of the instance's clock; in real time after a link has sent it.
        tokens: computed, or found in the KV-cache pool.
        nbytes: KV moved.
        predicted_s: duration on real NPUs of its step [s]; 0 = unknown.
    """

    kind: str
    seconds: float
    tokens: int = 0
    nbytes: int = 0
    predicted_s: float = 0.0


class VisitTimes(Value, frozen=True, gc=False):
    """Parts of a visit until its first event; sent with that event, before it.

    Args:
        source: replica that a handoff was pulled from; empty if there was none.
    """

    sequence_id: SequenceId
    legs: tuple[Leg, ...]
    source: str = ""


class StepTime(Value, frozen=True, gc=False):
    """End of a step, sent with its events.

    Args:
        at_s: on the instance's clock; only differences of `at_s` of one instance are meaningful.
        busy_s: time spent in steps so far, including this one [s]; likewise.
        step_s: this step, or those whose events are sent together [s].
        predicted_s: duration on real NPUs [s]; 0 = unknown.
        sessions: of the same steps, where a group of ranks computes them, in real time.
    """

    at_s: float
    busy_s: float
    step_s: float
    predicted_s: float = 0.0
    sessions: SessionTimes = NO_SESSIONS

    def in_real_time(self, time_scale: float) -> "StepTime":
        """The same in real seconds, except for the predicted time."""
        times = self.at_s / time_scale, self.busy_s / time_scale, self.step_s / time_scale
        return StepTime(*times, self.predicted_s, self.sessions)


def after(one: StepTime, later: StepTime) -> StepTime:
    """Both combined, when their events are sent together."""
    sums = one.step_s + later.step_s, one.predicted_s + later.predicted_s, one.sessions + later.sessions
    return StepTime(later.at_s, later.busy_s, *sums)


def in_real_time(course: VisitTimes, time_scale: float) -> VisitTimes:
    """The same in real seconds, except for predicted times."""
    legs = tuple(
        Leg(leg.kind, leg.seconds / time_scale, leg.tokens, leg.nbytes, leg.predicted_s) for leg in course.legs
    )
    return VisitTimes(course.sequence_id, legs, course.source)
