"""One random checkpoint and one reference for all tests of the live path; a folder in shared memory for each test."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvpool.patience import be_patient
from tests.live.workload import Reference
from tests.model.random_checkpoint import write_random_checkpoint

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no failure."""
    be_patient(monkeypatch)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random float32 model of a few thousand weights."""
    return write_random_checkpoint(tmp_path_factory.mktemp("live") / "model")


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """What the model says without engine, pools and batches."""
    return Reference(checkpoint)


@pytest.fixture
def shm() -> Iterator[Path]:
    """An empty folder in shared memory, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cloudmatrix-test-", dir=SHARED_MEMORY))
    yield folder
    shutil.rmtree(folder)
