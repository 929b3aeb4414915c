"""One accepted job, as the HTTP API sees it: an awaitable stream of updates."""

import asyncio
from collections.abc import Callable, Sequence

from serving.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    PoisonError,
    ServingError,
    UnavailableError,
)
from serving.gateway.core.timeline import Answered
from serving.gateway.core.timeline_builder import RequestBuilder
from serving.gateway.live.timelines import LiveTimelines
from serving.ids import ReplicaId
from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.news import FailKind
from serving.values.traffic import RequestMeter

RETRY_AFTER_S = 1.0
"""Default if no instance has sent a Retry-After."""


class LiveGeneration:
    """A `Generation` fed by the backend.

    Args:
        number: of the job at its gateway.
        submitted: gateway time of acceptance [s].
        on_stop: called with the number and an index, to finish one choice early.
        on_cancel: called with the number, to cancel all unfinished choices.
    """

    def __init__(
        self,
        number: int,
        job: GenerationJob,
        submitted: float,
        on_stop: Callable[[int, int], None],
        on_cancel: Callable[[int], None],
    ) -> None:
        self.number = number
        self.job = job
        self.submitted = submitted
        self.closed = False
        self.replicas: list[ReplicaId] = []
        """See `Generation.replicas`."""
        self.meter: RequestMeter | None = None
        """Counts what comes of it; None = nobody wants to know."""
        self.times: RequestBuilder | None = None
        self.timelines: LiveTimelines | None = None
        """Times of its request; None = time lines are not kept."""
        self._updates: list[SequenceUpdate] = []
        self._error: ServingError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_stop = on_stop
        self._on_cancel = on_cancel

    async def next(self) -> Sequence[SequenceUpdate]:
        """See `Generation.next`."""
        while True:
            if self._updates:
                updates, self._updates = self._updates, []
                return updates
            if self._error is not None:
                raise self._error
            if self.closed:
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def stop(self, index: int) -> None:
        """See `Generation.stop`."""
        self._updates = [update for update in self._updates if update.index != index]
        self._on_stop(self.number, index)

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._on_cancel(self.number)

    def given_to(self, replica: ReplicaId) -> None:
        """Record an instance that works on this job."""
        if replica not in self.replicas:
            self.replicas.append(replica)

    def deliver(self, update: SequenceUpdate) -> None:
        """Queue one update. Bounded by the sequence's own `max_tokens`; slow readers get several updates together."""
        if self.meter is not None:
            news = update.news
            if news.cached_tokens is not None:
                self.meter.prompt_done(len(self.job.sequences[update.index].prompt) - news.cached_tokens)
            self.meter.delivered(update.index, len(news.tokens), asyncio.get_running_loop().time())
        if self.times is not None and self.timelines is not None:
            self.timelines.delivered(self.times, update)
        self._updates.append(update)
        self._wake()

    def fail(self, failure: Fail, retry_after_s: float | None) -> None:
        """End the job with an error; earlier updates are still read first.

        Args:
            retry_after_s: when a refused request may be retried; None = unknown.
        """
        if self._error is None:
            self._error = as_error(failure, retry_after_s or RETRY_AFTER_S)
            if self.meter is not None and isinstance(self._error, OverloadedError | UnavailableError):
                self.meter.turned_away()
        self._wake()

    def answered(self, answered: Answered) -> None:
        """See `Generation.answered`."""
        if self.times is not None and self.timelines is not None:
            self.timelines.answered(self.times, answered)

    def close(self, now: float) -> None:
        """Mark the end of all updates. `now`: gateway time [s]."""
        self.closed = True
        if self.times is not None:
            self.times.over(now)
        if self.meter is not None:
            self.meter.end()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def as_error(failure: Fail, retry_after_s: float) -> ServingError:
    """The error that the HTTP API converts to a status.

    Args:
        retry_after_s: when a refused request may be retried.
    """
    match failure.kind:
        case FailKind.DEADLINE:
            return DeadlineError(failure.reason)
        case FailKind.UNAVAILABLE:
            return UnavailableError(failure.reason, retry_after_s=RETRY_AFTER_S)
        case FailKind.OVERLOADED:
            return OverloadedError(failure.reason, retry_after_s=retry_after_s)
        case FailKind.INVALID:
            return InvalidRequestError(failure.reason)
        case FailKind.DRAINING:
            return UnavailableError(failure.reason, retry_after_s=RETRY_AFTER_S)
        case FailKind.POISON:
            return PoisonError(failure.reason)
        case FailKind.ENGINE:
            return EngineError(failure.reason)
