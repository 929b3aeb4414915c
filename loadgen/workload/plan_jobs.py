"""Join contents, times and behaviours into the jobs of a run.

Each of the three has its own random stream of the run's seed, so that for instance the prompts stay the same when the
rate changes, and the times when the lengths do.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals import Arrivals, ReplayedArrivals, each, stream
from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Behaviour, Conduct, Conversation, LoadJob, Turn
from loadgen.workload.ports import Workload

# Which clients do not behave, and how: shares of requests, seeded.


@dataclass(frozen=True)
class Behaviours:
    """Shares of requests (turns) by conduct; the rest is well-behaved.

    Attributes:
        disconnect_share, slow_reader_share, timeout_share, malformed_share: each in [0, 1], together at most 1.
        disconnect_within_s: a client that disconnects does so at a random moment in this time, or at a random chunk of
            the response, whichever comes first; so that fast responses are interrupted, too.
        slow_reader_bytes_per_s: how fast slow readers read.
        give_up_after_s: deadline of requests with a short timeout [s].
        malformations: number of kinds of malformed requests; drawn equally.
    """

    disconnect_share: float = 0.0
    disconnect_within_s: float = 2.0
    slow_reader_share: float = 0.0
    slow_reader_bytes_per_s: float = 2000.0
    timeout_share: float = 0.0
    give_up_after_s: float = 0.5
    malformed_share: float = 0.0
    malformations: int = 8

    def __post_init__(self) -> None:
        """Raises: UsageError for shares outside [0, 1] or above 1 together."""
        shares = [share for _, share in self._shares()]
        if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
            raise UsageError("shares of client behaviour must be between 0 and 1, and sum to at most 1")

    def draw(self, conversation: Conversation, rng: np.random.Generator) -> list[Behaviour]:
        """One behaviour a turn; empty if every request of the run is normal.

        Effects: advances `rng`.
        """
        if not any(share for _, share in self._shares()):
            return []
        return [self._behaviour(turn, rng) for turn in conversation.turns]

    def _shares(self) -> tuple[tuple[Conduct, float], ...]:
        """Share of each conduct that is not normal."""
        return (
            (Conduct.DISCONNECT, self.disconnect_share),
            (Conduct.SLOW_READER, self.slow_reader_share),
            (Conduct.TIMEOUT, self.timeout_share),
            (Conduct.MALFORMED, self.malformed_share),
        )

    def _behaviour(self, turn: Turn, rng: np.random.Generator) -> Behaviour:
        """Behaviour of one request. The number of draws is constant, so that shares do not affect each other."""
        which, moment, chunk, kind = rng.random(4).tolist()
        for conduct, share in self._shares():
            if which < share:
                return self._with_numbers(conduct, turn, moment, chunk, kind)
            which -= share
        return Behaviour()

    def _with_numbers(self, conduct: Conduct, turn: Turn, moment: float, chunk: float, kind: float) -> Behaviour:
        """A conduct with its numbers; `moment`, `chunk` and `kind` are uniform in [0, 1)."""
        if conduct is Conduct.DISCONNECT:
            return Behaviour(
                conduct=conduct,
                leave_after_s=moment * self.disconnect_within_s,
                leave_after_chunks=1 + int(chunk * max(1, turn.output_tokens - 1)),
            )
        if conduct is Conduct.SLOW_READER:
            return Behaviour(conduct=conduct, read_bytes_per_s=self.slow_reader_bytes_per_s)
        if conduct is Conduct.TIMEOUT:
            return Behaviour(conduct=conduct, give_up_after_s=self.give_up_after_s)
        return Behaviour(conduct=conduct, malformation=int(kind * self.malformations))


# Join contents, times and behaviours into the jobs of a run.

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
