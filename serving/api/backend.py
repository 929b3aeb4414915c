"""The port between the HTTP surface and whatever generates tokens: the live pools, or a fake in tests.

The HTTP side turns a request into a `GenerationJob` of `n` sequences; the backend owns routing, retries, resume and
deadlines; updates come back in arrival order. Stop strings are the HTTP side's business: it sees text, engines do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.ids import RequestId
from serving.policy.request import DraftUse, FinishReason, PoolUse, SequenceSpec, TokenLogprobs


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One HTTP request's work. `sequences[i]` is choice `i`; `sequence_id` is `<request_id>/<i>`.

    Args:
        key: whose it is, when several share the queue; empty on an open server.
        weight: of that key's share.
    """

    request_id: RequestId
    sequences: tuple[SequenceSpec, ...]
    key: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """News of one sequence: zero or more new tokens, at most one finish.

    Args:
        index: choice index.
        logprobs: one per new token when asked.
        prompt_logprobs: for prompt positions 1 ...; only once, with the first update, when asked.
        cached_tokens: prompt tokens whose KV was reused, found locally or pulled; only with the first update.
        queue_s: how long the sequence waited before work on it began; only with the first update, None = not known.
        pool: what the KV-cache pool had to do with it; only with the first update, None without a pool.
        drafts: what became of tokens that were guessed; None if none were.
        resumptions: times so far that the sequence had to go on elsewhere, because an instance failed it.
        preempted: times so far that the sequence had to give its blocks back for want of room.
        finish_reason: STOP (a stop token, which is the last of `tokens`), LENGTH, or None.
    """

    index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    queue_s: float | None = None
    pool: PoolUse | None = None
    drafts: DraftUse | None = None
    resumptions: int = 0
    preempted: int = 0


class Generation(Protocol):
    """A job under way."""

    async def next(self) -> Sequence[SequenceUpdate]:
        """Wait for news and return everything that has arrived since the last call (at least one update).

        Returns: an empty sequence when all sequences have finished and were reported.
        Raises: DeadlineError, EngineError, UnavailableError: the job is over, nothing remains to be freed.
        """
        ...

    def stop(self, index: int) -> None:
        """End one sequence early (a stop string matched). No more updates for it; its blocks are freed."""
        ...

    def cancel(self) -> None:
        """End every unfinished sequence: the client left. Idempotent, never blocks, never raises."""
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
