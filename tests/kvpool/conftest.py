"""Shared memory for servers under test; asserts that none is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvpool.patience import be_patient
from tests.kvpool.server_process import segment_folder


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, since a busy machine is no failure."""
    be_patient(monkeypatch)


@pytest.fixture
def segments() -> Iterator[Path]:
    """An empty folder of /dev/shm."""
    with segment_folder() as folder:
        yield folder
