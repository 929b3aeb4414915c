"""The port between the HTTP API and the token generator: the live pools, or a fake in tests.

The API turns a request into a `GenerationJob` of `n` sequences; the backend does routing, retries, resumption and
deadlines, and returns updates in the order in which they arrive. The API handles stop strings: engines see no text.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from serving.errors import EngineError, OverloadedError, UnavailableError
from serving.gateway.api.choice import ChoiceOutput, Visible
from serving.gateway.api.running_requests import RequestCancelledError
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.translate import GenerationOrder
from serving.gateway.api.usage import Timing
from serving.gateway.core.timeline import Answered, Outcome
from serving.telemetry.metrics import GatewayMetrics
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.sequence import PoolUse


class Generation(Protocol):
    """A job under way."""

    @property
    def replicas(self) -> Sequence[str]:
        """Instances that worked on the job, in order, each once."""
        ...

    async def next(self) -> Sequence[SequenceUpdate]:
        """Wait for updates and return all that have arrived since the last call (at least one).

        Returns: an empty sequence after all sequences have finished and were reported.
        Raises: DeadlineError, EngineError, UnavailableError: the job has ended and holds no resources.
        """
        ...

    def stop(self, index: int) -> None:
        """Finish one sequence early (a stop string matched). It gets no more updates; its blocks are freed."""
        ...

    def cancel(self) -> None:
        """Abort every unfinished sequence: the client left. Idempotent, never blocks, never raises."""
        ...

    def answered(self, answered: Answered) -> None:
        """Store the request's timeline, as its response is complete or was aborted. The last call, made once."""
        ...


class GenerationBackend(Protocol):
    """Accepts jobs."""

    def submit(self, job: GenerationJob) -> Generation:
        """Admit a job.

        Raises: OverloadedError (429), UnavailableError (503).
        """
        ...

    def ready(self) -> bool:
        """True when a request sent now could be served."""
        ...


# One accepted order in progress: turns the backend's updates into visible output and records how it ends.


_CANCELLED = "the request was cancelled by another request"


class RequestRun:
    """Owns the backend's `Generation`. `close` must be called exactly once, whatever happened.

    `failed` distinguishes a failure from a client that left; `timing` is set for a single choice only.
    """

    __slots__ = (
        *("_arrived", "_cached", "_cancelled", "_generation", "_metrics", "_names", "_open", "_outcome", "_pulled"),
        *("_reader", "_timeline", "_trace"),
        *("choices", "failed", "order", "timing"),
    )

    def __init__(
        self,
        order: GenerationOrder,
        backend: GenerationBackend,
        tokenizer: Tokenizer,
        metrics: GatewayMetrics,
        arrived: float,
        names: tuple[str, ...] = (),
        trace: str = "",
    ) -> None:
        """Submit the order.

        Args:
            names, trace: see `Answered`.

        Raises: OverloadedError, UnavailableError; no job is running then.
        """
        self.order = order
        self.choices = [
            ChoiceOutput(i, order.prompts[i // order.n], order.options, tokenizer)
            for i in range(len(order.job.sequences))
        ]
        self._open = len(self.choices)
        self.failed = self._cancelled = False
        self._reader: asyncio.Task[Any] | None = None
        """The task that waits in `next`."""
        self._arrived = arrived
        self._names, self._trace = names, trace
        self._cached = self._pulled = 0
        self._outcome: Outcome = "stop"
        self._metrics = metrics
        self.timing = Timing(metrics.clock(), arrived) if self._open == 1 else None
        try:
            self._generation: Generation = backend.submit(order.job)
        except OverloadedError:
            metrics.rejected("overloaded")
            raise
        except UnavailableError:
            metrics.rejected("unavailable")
            raise
        lengths = [len(prompt) for prompt in order.prompts]
        self._timeline = metrics.request_started(
            lengths, order.n, order.max_tokens, arrived, order.namespace, order.job.session
        )

    async def next(self) -> list[tuple[int, Visible]]:
        """Wait for the next batch of updates; empty when every choice is finished.

        Raises: ServingError when the job failed; RequestCancelledError after `cancel`.
        """
        if not self._open:
            return []
        if self._cancelled:
            raise RequestCancelledError(_CANCELLED)
        self._reader = reader = asyncio.current_task()
        try:
            return self._take(await self._generation.next())
        except asyncio.CancelledError:
            if not self._ended_by_cancel(reader):
                raise
            raise RequestCancelledError(_CANCELLED) from None
        except Exception:
            self.failed = True
            raise
        finally:
            self._reader = None

    def _ended_by_cancel(self, reader: "asyncio.Task[Any] | None") -> bool:
        """Whether `cancel` was the only reason why the reading task was cancelled."""
        return self._cancelled and reader is not None and not reader.uncancel()

    def cancel(self) -> None:
        """Abort every unfinished choice; `next` raises. Called by another request."""
        if self._cancelled or not self._open:
            return
        self._cancelled = True
        self._generation.cancel()
        if self._reader is not None:
            self._reader.cancel()

    def _take(self, updates: Sequence[SequenceUpdate]) -> list[tuple[int, Visible]]:
        if not updates:
            raise EngineError("the backend ended a job with unfinished choices")
        now = self._metrics.clock()
        result: list[tuple[int, Visible]] = []
        for update in updates:
            index = update.index
            choice = self.choices[index]
            if choice.finished:  # an update that was already in flight when we sent `stop`
                continue
            if update.queue_s is not None and self.timing is not None:
                self.timing.queue_s = update.queue_s
            if update.news.cached_tokens is not None:
                self._begun(update, update.news.cached_tokens)
            if update.resumptions:
                self._timeline.resumed(index, update.resumptions)
            if update.preempted:
                self._timeline.preempted(index, update.preempted)
            out = choice.push(update)
            if out.tokens:
                self._timeline.tokens(index, len(out.tokens), now)
                if self.timing is not None:
                    self.timing.token(now)
            if out.finish is not None:
                self._open -= 1
                self._outcome = "length" if out.finish == "length" else "stop"
                self._timeline.finished(index, out.finish, now)
                if out.stopped_by_text:
                    self._generation.stop(index)
            result.append((index, out))
        return result

    @property
    def open(self) -> bool:
        """True while a choice is unfinished."""
        return self._open > 0

    def replicas(self) -> dict[str, list[str]]:
        """The key `replicas`, the instances that worked on it; empty if they are not to be reported."""
        return {"replicas": list(self._generation.replicas)} if self.order.tells_replicas else {}

    def close(self) -> None:
        """Cancel unfinished choices (the client left, or the job failed) and record the request."""
        if self._open:
            self._generation.cancel()
            reason = self._outcome = "error" if self.failed and not self._cancelled else "abort"
            now = self._metrics.clock()
            for choice in self.choices:
                if not choice.finished:
                    self._timeline.finished(choice.index, reason, now)
        self._timeline.ended()
        names = (self.order.response_id, *self._names)
        ended = self._metrics.clock()
        self._generation.answered(
            Answered(self._arrived, ended, self._outcome, names, self._trace, self._cached, self._pulled)
        )

    def _begun(self, update: SequenceUpdate, cached_tokens: int) -> None:
        pool = update.news.pool or PoolUse()
        self._cached += cached_tokens
        self._pulled += pool.pulled_tokens
        recomputed = {pool.reason or "error": pool.recomputed_tokens} if pool.recomputed_tokens else None
        self._timeline.begun(
            update.index,
            update.queue_s or 0.0,
            cached_tokens,
            pulled_tokens=pool.pulled_tokens,
            ssd_tokens=pool.ssd_tokens,
            recomputed=recomputed,
        )
