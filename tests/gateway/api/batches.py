"""A backend that replays given batches of updates."""

from collections.abc import Sequence

from fastapi import FastAPI

from serving.gateway.api.app import create_app
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.telemetry.metrics import GatewayMetrics
from serving.values.jobs import GenerationJob, SequenceUpdate


class Batches:
    """Replays whole batches of updates, then an empty one."""

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
        """Do nothing: this backend keeps no time lines."""


def play(served: ServedModel, *batches: Sequence[SequenceUpdate]) -> tuple[FastAPI, Batches]:
    """An application over such a backend."""
    backend = Batches(*batches)
    metrics = GatewayMetrics(served.names[0], max_model_len=served.max_model_len)
    return create_app(backend, served, ApiSettings(), metrics), backend
