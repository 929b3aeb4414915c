"""Jobs that wait for their turn at one gateway: `policy.admission_queue`, with the jobs themselves."""

from zlib import crc32

from serving.api.backend import GenerationJob
from serving.errors import OverloadedError, UnavailableError
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.gateway_admission import Applicant
from serving.policy.journal_commands import Fail, FailKind
from serving.policy.output_reserve import RESERVE_TOKENS
from serving.runtime.live_generation import LiveGeneration

_LATE = Fail(FailKind.DEADLINE, "the request's time is over, it was still waiting for its turn")


class WaitingRoom:
    """Everything passes through it, what starts at once too.

    Args:
        queue: decides; was asked nothing yet.
        role_wait_s: how long a job waits while there is no instance at all.
    """

    def __init__(self, queue: AdmissionQueue, role_wait_s: float) -> None:
        self._queue = queue
        self._role_wait_s = role_wait_s
        self._waiting: dict[int, LiveGeneration] = {}
        self._closed_since: float | None = None
        """Since when there has been no instance."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Known tokens of those that wait."""
        return self._queue.tokens

    @property
    def oldest_since(self) -> float | None:
        """Since when the oldest of them has been waiting."""
        return self._queue.oldest_since

    def apply(self, number: int, job: GenerationJob, running: int, now: float, is_open: bool) -> None:
        """Ask for a place; call `enter` at once if there is one.

        Args:
            number: of the job; they only grow. running: sequences in the pools. is_open: an instance is there.
        Raises: OverloadedError if it may not wait; UnavailableError if that is for want of an instance.
        """
        decision = self._queue.offer(applicant(number, job, now), running, now, is_open)
        if decision.accepted:
            return
        if not is_open:
            message = f"no instance is up, and too many wait for one: {decision.reason}"
            raise UnavailableError(message, retry_after_s=decision.retry_after_s)
        raise OverloadedError(f"the gateway is full: {decision.reason}", retry_after_s=decision.retry_after_s)

    def enter(self, generation: LiveGeneration) -> None:
        """The job that was just given a place."""
        self._waiting[generation.number] = generation

    def forsake(self, number: int) -> None:
        """The place of a job that never came to be."""
        self._queue.withdraw(number)

    def next(self, running: int, now: float) -> LiveGeneration | None:
        """Who starts now; ask only while an instance is there."""
        number = self._queue.take(running, now)
        return None if number is None else self._waiting.pop(number)

    def all(self) -> tuple[LiveGeneration, ...]:
        """Those that wait."""
        return tuple(self._waiting.values())

    def leave(self, generation: LiveGeneration) -> None:
        """It is over before it began."""
        if self._waiting.pop(generation.number, None) is not None:
            self._queue.withdraw(generation.number)

    def finished(self, residence_s: float) -> None:
        """A sequence of a job that was started is over, so long after."""
        self._queue.finished(residence_s)

    def overdue(self, now: float, is_open: bool) -> list[tuple[LiveGeneration, Fail]]:
        """Those that wait no longer, and why: their time is over, or no instance came."""
        self._closed_since = None if is_open else now if self._closed_since is None else self._closed_since
        if not self._waiting:
            return []
        gone = [(self._waiting.pop(number), _LATE) for number in self._queue.overdue(now)]
        if self._closed_since is not None:
            reason = f"no instance came up within {self._role_wait_s:g} s"
            long_enough = now - self._closed_since > self._role_wait_s
            for number in self._queue.overdue(now, now - self._role_wait_s if long_enough else 0.0):
                gone.append((self._waiting.pop(number), Fail(FailKind.UNAVAILABLE, reason)))
        return gone


def applicant(number: int, job: GenerationJob, now: float) -> Applicant:
    """A job as the queue sees it. A job is as important as its most important sequence."""
    specs = job.sequences
    return Applicant(
        number=number,
        sequences=len(specs),
        tokens=sum(len(spec.prompt) + len(spec.output) for spec in specs),
        expected_tokens=sum(min(spec.sampling.max_tokens, RESERVE_TOKENS) for spec in specs),
        deadline=now + min(spec.time_left_s for spec in specs),
        key=job.key,
        weight=job.weight,
        priority=min(spec.priority for spec in specs),
        # Of integers only: the same in every process. With the key, since nobody may claim another's place.
        mark=hash((len(specs), specs[0].prompt, crc32(job.key.encode()))) & (2**63 - 1),
    )
