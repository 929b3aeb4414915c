"""A folder in shared memory, and other processes."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardware.ub.processes import Processes

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def shm() -> Iterator[Path]:
    """An empty folder in shared memory, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cloudmatrix-test-", dir=SHARED_MEMORY))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Factory of child processes, which are killed at the end."""
    with Processes() as helper:
        yield helper
