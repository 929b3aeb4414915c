"""Shared memory for servers under test; nothing of it may be left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvpool.server_process import segment_folder


@pytest.fixture
def segments() -> Iterator[Path]:
    """An empty folder of /dev/shm."""
    with segment_folder() as folder:
        yield folder
