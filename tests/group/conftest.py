"""Fixture: a folder in shared memory for slots."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shm() -> Iterator[Path]:
    """An empty folder in shared memory, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cloudmatrix-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
