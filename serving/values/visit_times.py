"""Durations that an instance measures of a sequence's visit, on its own clock, for the request's time line.

    Add    queue │ pool get │ wait │ prefill │ wait │ prefill ··· │ checksums ──► first token
    Adopt  queue │ handoff │ wait │ decode ──► first token there

Only durations are told, and readings of one clock that are compared with readings of the same clock: the clocks of two
hosts are never compared.
"""

from serving.ids import SequenceId
from serving.values.news import Value

QUEUE = "queue"
POOL_GET = "pool get"
WAIT = "wait"
PREFILL = "prefill"
CHECKSUMS = "checksums"
HANDOFF = "handoff"
DECODE = "decode"


class Leg(Value, frozen=True, gc=False):
    """One piece of a visit.

    Args:
        seconds: of the instance's clock, in real time once a link has carried it.
        tokens: computed, or found in the KV-cache pool.
        nbytes: KV moved.
        predicted_s: time of real NPUs for the step that it was part of [s]; 0 = not known.
    """

    kind: str
    seconds: float
    tokens: int = 0
    nbytes: int = 0
    predicted_s: float = 0.0


class VisitTimes(Value, frozen=True, gc=False):
    """Legs of a visit until its first news; goes out with that, ahead of it.

    Args:
        source: replica that a handoff came from; empty where there was none.
    """

    sequence_id: SequenceId
    legs: tuple[Leg, ...]
    source: str = ""


class StepTime(Value, frozen=True, gc=False):
    """End of a step, told with its news.

    Args:
        at_s: the instance's clock; only the difference to another `at_s` of the same instance means anything.
        busy_s: time spent in steps so far, this one included [s]; likewise.
        step_s: this step, or those whose news go out together [s].
        predicted_s: time of real NPUs for it [s]; 0 = not known.
    """

    at_s: float
    busy_s: float
    step_s: float
    predicted_s: float = 0.0

    def in_real_time(self, time_scale: float) -> "StepTime":
        """The same in real seconds, but for predicted time."""
        return StepTime(self.at_s / time_scale, self.busy_s / time_scale, self.step_s / time_scale, self.predicted_s)


def after(one: StepTime, later: StepTime) -> StepTime:
    """Both as one, whose news go out together."""
    return StepTime(later.at_s, later.busy_s, one.step_s + later.step_s, one.predicted_s + later.predicted_s)


def in_real_time(course: VisitTimes, time_scale: float) -> VisitTimes:
    """The same in real seconds, but for predicted time."""
    legs = tuple(
        Leg(leg.kind, leg.seconds / time_scale, leg.tokens, leg.nbytes, leg.predicted_s) for leg in course.legs
    )
    return VisitTimes(course.sequence_id, legs, course.source)
