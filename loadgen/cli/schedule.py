"""A run's jobs on their way to the driver, and what is known of the whole plan while it is drawn."""

from collections.abc import Iterator

from loadgen.plan import LoadJob


class Schedule:
    """Passes jobs on; counts their requests and records their arrival rate.

    Args:
        count: conversations requested, including warm-ups; None = as many as there are.
    """

    def __init__(self, jobs: Iterator[LoadJob], count: int | None = None) -> None:
        self._jobs = jobs
        self._count = count
        self._conversations = self._requests = 0
        self._whole = False
        self.measured = 0
        """Conversations drawn that are no warm-ups."""
        self._timed = 0
        self._first_s = self._last_s = 0.0

    def __iter__(self) -> Iterator[LoadJob]:
        for job in self._jobs:
            self._conversations += 1
            self._requests += len(job.conversation.turns)
            self.measured += not job.warmup
            if job.due_s is not None and not job.warmup:
                self._first_s = self._first_s if self._timed else job.due_s
                self._last_s = job.due_s
                self._timed += 1
            yield job
        self._whole = True

    @property
    def requests(self) -> int | None:
        """Requests of the plan, warm-ups and later turns included; None if the total is unknown.

        Exact once all jobs are drawn; until then the remaining ones are assumed to have as many turns as those drawn.
        """
        if self._whole:
            return self._requests
        if self._count is None:
            return None
        turns = self._requests / self._conversations if self._conversations else 1.0
        return self._requests + round((self._count - self._conversations) * turns)

    @property
    def missing(self) -> int:
        """Requested conversations that the workload did not provide, once it is exhausted."""
        return 0 if self._count is None or not self._whole else self._count - self._conversations

    @property
    def offered_per_s(self) -> float | None:
        """Rate of the measured part of the schedule as it was drawn; None if it has no extent."""
        span_s = self._last_s - self._first_s
        return (self._timed - 1) / span_s if self._timed > 1 and span_s > 0 else None
