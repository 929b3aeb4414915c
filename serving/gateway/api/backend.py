"""The port between the HTTP API and the token generator: the live pools, or a fake in tests.

The API turns a request into a `GenerationJob` of `n` sequences; the backend does routing, retries, resumption and
deadlines, and returns updates in the order in which they arrive. The API handles stop strings: engines see no text.
"""

from collections.abc import Sequence
from typing import Protocol

from serving.gateway.core.timeline import Answered
from serving.values.jobs import GenerationJob, SequenceUpdate


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
