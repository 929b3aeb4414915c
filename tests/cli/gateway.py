"""A gateway's HTTP surface over a scripted backend, for commands that ask one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.gateway.api.settings import ApiSettings, ServedModel
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, running_server, write_model_folder


@contextmanager
def scripted_gateway(folder: Path, settings: ApiSettings | None = None) -> Iterator[tuple[Harness, str]]:
    """One that runs inside the block, and its address."""
    model = ServedModel.from_folder(write_model_folder(folder), names=("tiny",), max_model_len=MAX_MODEL_LEN, created=7)
    harness = Harness(model, settings)
    with running_server(harness.app) as url:
        yield harness, url
