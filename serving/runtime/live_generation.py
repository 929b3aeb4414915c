"""One accepted job, from the HTTP side's point of view: an awaitable stream of updates."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.api.backend import GenerationJob, SequenceUpdate
from serving.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    PoisonError,
    ServingError,
    UnavailableError,
)
from serving.link import messages as m
from serving.policy.journal_commands import Deliver, Fail, FailKind, Need
from serving.policy.request_journal import SequenceJournal
from serving.runtime.traffic import RequestMeter

RETRY_AFTER_S = 1.0
"""Where no instance has said when."""


@dataclass(slots=True)
class Choice:
    """One sequence of the job: its journal, and what it waits for when no instance was to be had, since when; or from
    when on, while all are full.
    """

    index: int
    journal: SequenceJournal
    need: Need | None = None
    waiting_since: float | None = None
    told: bool = False
    """Something of it was delivered."""
    waited_s: float = 0.0
    """In the instance that computed its prompt, before that began."""
    preempted: int = 0
    """Times that it had to give its blocks back in an instance, as far as instances told."""


class LiveGeneration:
    """A `Generation` fed by the backend.

    Args:
        submitted: gateway time of acceptance [s]; `started` follows when it leaves the queue.
        on_stop: called to end one choice early; must not call back.
        on_cancel: called once to end all that is left.
        number: of the job at its gateway.
    """

    def __init__(
        self,
        job: GenerationJob,
        choices: Sequence[Choice],
        submitted: float,
        on_stop: Callable[["LiveGeneration", Choice], None],
        on_cancel: Callable[["LiveGeneration"], None],
        number: int = 0,
    ) -> None:
        self.job = job
        self.number = number
        self.choices = tuple(choices)
        self.tokens = sum(len(s.prompt) + len(s.output) for s in job.sequences)
        self.submitted = submitted
        self.started = submitted
        self.closed = False
        self.meter: RequestMeter | None = None
        """Counts what comes of it; None = nobody wants to know."""
        self._retry_after_s: float | None = None
        self._updates: list[SequenceUpdate] = []
        self._error: ServingError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_stop = on_stop
        self._on_cancel = on_cancel

    @property
    def begun(self) -> bool:
        """Something of it was delivered."""
        return any(choice.told for choice in self.choices)

    @property
    def stuck(self) -> bool:
        """Waits for an instance, and has not had a token."""
        return not self.begun and any(choice.need is not None for choice in self.choices)

    async def next(self) -> Sequence[SequenceUpdate]:
        """As `Generation.next`."""
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
        """As `Generation.stop`."""
        self._updates = [update for update in self._updates if update.index != index]
        self._on_stop(self, self.choices[index])

    def cancel(self) -> None:
        """As `Generation.cancel`."""
        self._on_cancel(self)

    def queued_s(self, choice: Choice) -> float:
        """How long one sequence waited before work on it began: here, then in the instance."""
        return self.started - self.submitted + choice.waited_s

    def heed(self, choice: Choice, news: m.News) -> None:
        """What a full instance says of when to come back is told to the client if nobody else takes it.

        Effects: notes how long the sequence waited there, and how often it lost its place.
        """
        first = news.first if isinstance(news, m.Prefilled) else news
        if isinstance(first, m.Tokens):
            choice.preempted += first.preempted
            if first.waited_s is not None and not choice.told:
                choice.waited_s = first.waited_s
        if isinstance(news, m.Refused) and news.kind is FailKind.OVERLOADED:
            told = self._retry_after_s
            self._retry_after_s = news.retry_after_s if told is None else min(told, news.retry_after_s)

    def deliver(self, index: int, news: Deliver) -> None:
        """Queue one update. Bounded by the sequence's own `max_tokens`, and slow readers get them in one go."""
        is_first = news.cached_tokens is not None
        if self.meter is not None:
            if news.cached_tokens is not None:
                self.meter.prompt_done(len(self.job.sequences[index].prompt) - news.cached_tokens)
            self.meter.delivered(index, len(news.tokens), asyncio.get_running_loop().time())
        self._updates.append(
            SequenceUpdate(
                index,
                news.tokens,
                news.logprobs,
                news.prompt_logprobs,
                news.cached_tokens,
                news.finish_reason,
                queue_s=self.queued_s(self.choices[index]) if is_first else None,
                pool=news.pool,
                drafts=news.drafts,
                resumptions=self.choices[index].journal.attempts.total,
                preempted=self.choices[index].preempted,
            )
        )
        self.wake()

    def fail(self, failure: Fail) -> None:
        """End the job with an error; updates that came before it are still read first."""
        if self._error is None:
            self._error = as_error(failure, self._retry_after_s or RETRY_AFTER_S)
            if self.meter is not None and isinstance(self._error, OverloadedError | UnavailableError):
                self.meter.turned_away()
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self.closed and self.meter is not None:
            self.meter.end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def as_error(failure: Fail, retry_after_s: float) -> ServingError:
    """The error that the HTTP side turns into a status.

    Args:
        retry_after_s: when a refused request may come back.
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
