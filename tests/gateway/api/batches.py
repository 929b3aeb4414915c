"""A backend that plays given batches of updates."""

from collections.abc import Sequence

import pytest

from serving.values.jobs import GenerationJob, SequenceUpdate
from tests.gateway.api.support import Harness


class Batches:
    """Plays whole batches of updates; an empty one at the end."""

    def __init__(self, *batches: Sequence[SequenceUpdate]) -> None:
        self.batches = list(batches)
        self.stopped: list[int] = []
        self.cancelled = 0
        self.replicas: Sequence[str] = ()

    def submit(self, job: GenerationJob) -> "Batches":
        return self

    def ready(self) -> bool:
        return True

    async def next(self) -> Sequence[SequenceUpdate]:
        return self.batches.pop(0) if self.batches else ()

    def stop(self, index: int) -> None:
        self.stopped.append(index)

    def cancel(self) -> None:
        self.cancelled += 1

    def answered(self, answered: object) -> None:
        """Ignore: time lines are not kept here."""


def play(harness: Harness, monkeypatch: pytest.MonkeyPatch, *batches: Sequence[SequenceUpdate]) -> Batches:
    backend = Batches(*batches)
    monkeypatch.setattr(harness.backend, "submit", backend.submit)
    return backend
