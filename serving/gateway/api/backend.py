"""The port between the HTTP surface and whatever generates tokens: the live pools, or a fake in tests.

The HTTP side turns a request into a `GenerationJob` of `n` sequences; the backend owns routing, retries, resume and
deadlines; updates come back in arrival order. Stop strings are the HTTP side's business: it sees text, engines do not.
"""

from collections.abc import Sequence
from typing import Protocol

from serving.gateway.core.timeline import Answered
from serving.values.jobs import GenerationJob, SequenceUpdate


class Generation(Protocol):
    """A job under way."""

    @property
    def replicas(self) -> Sequence[str]:
        """Instances that were given work of it, in order, each once."""
        ...

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

    def answered(self, answered: Answered) -> None:
        """Keep the request's time line: its answer is out, or will never be. Called once, as the last."""
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
