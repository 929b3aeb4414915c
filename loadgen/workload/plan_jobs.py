"""Join contents, times and behaviours into the jobs of a run.

Each of the three has its own random stream of the run's seed, so that for instance the prompts stay the same when the
rate changes, and the times when the lengths do.
"""

import itertools
import math
from collections.abc import Iterator

from loadgen.arrivals import Arrivals, ReplayedArrivals, each, stream
from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, LoadJob
from loadgen.workload.behaviours import Behaviours
from loadgen.workload.ports import Workload

_ALL_NORMAL = Behaviours()

Timed = Iterator[tuple[float | None, Conversation]]


def plan_jobs(
    workload: Workload,
    *,
    seed: int,
    arrivals: Arrivals | ReplayedArrivals | None = None,
    behaviours: Behaviours = _ALL_NORMAL,
    warmups: int = 0,
    count: int | None = None,
    duration_s: float | None = None,
) -> Iterator[LoadJob]:
    """The jobs of one run in the order in which they are due, drawn lazily.

    Warm-up jobs are the first `warmups` of the same plan, under the same load; `count` and `duration_s` start after
    them.

    Args:
        seed: repeats the plan exactly.
        arrivals: an arrival process; or `ReplayedArrivals`: the conversations' own times; None = closed loop, jobs have
            no time.
        count: measured conversations at most.
        duration_s: in an open loop, measured conversations are due within this time from the first of them (without
            warm-up: from the start of the run); in a closed loop the driver has to enforce it, since times are unknown.
    Returns: jobs; endless if neither the workload, the arrivals nor an argument bounds them.
    Raises: UsageError (while iterating) for `ReplayedArrivals` with a workload that has no times of its own;
        TraceFormatError if those times go backwards; any error of the workload.
    """
    behaviour_rng = stream(seed, "behaviours")
    last = None if count is None else warmups + count
    timed = itertools.islice(_timed(workload, arrivals, seed), last)
    measured_from_s = None if warmups else 0.0
    for index, (due_s, conversation) in enumerate(timed):
        warmup = index < warmups
        if not warmup and due_s is not None:
            measured_from_s = due_s if measured_from_s is None else measured_from_s
            if duration_s is not None and due_s >= measured_from_s + duration_s:
                return
        drawn = behaviours.draw(conversation, behaviour_rng)
        yield LoadJob(index=index, conversation=conversation, due_s=due_s, warmup=warmup, behaviours=drawn)


def _timed(workload: Workload, arrivals: Arrivals | ReplayedArrivals | None, seed: int) -> Timed:
    """Conversations with their times."""
    conversations = workload.conversations(stream(seed, "workload"))
    if arrivals is None:
        return ((None, conversation) for conversation in conversations)
    if isinstance(arrivals, ReplayedArrivals):
        return _replayed(conversations, arrivals)
    # Times first: zip takes a conversation only if there is a time for it.
    return zip(each(arrivals, stream(seed, "arrivals")), conversations, strict=False)


def _replayed(conversations: Iterator[Conversation], replay: ReplayedArrivals) -> Timed:
    """Conversations at their own times, of the window only."""
    latest_s = -math.inf
    for number, conversation in enumerate(conversations, start=1):
        recorded_s = conversation.arrival_s
        if recorded_s is None:
            raise UsageError("this workload has no times of its own; give --request-rate or --concurrency")
        if recorded_s < latest_s:
            raise TraceFormatError(
                f"conversation {number} came at {recorded_s:.3f} s, before the one in front of it ({latest_s:.3f} s)"
            )
        latest_s = recorded_s
        if replay.is_over(recorded_s):
            return
        due_s = replay.due_s(recorded_s)
        if due_s is not None:
            yield due_s, conversation
