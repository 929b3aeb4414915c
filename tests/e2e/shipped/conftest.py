"""One system for the whole folder: `deploy/small.toml` as `make serve` starts it.

Files run in the order of their names: README's responses need a fresh system, and the last file kills it.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server
from tests.e2e.topology import DEPLOY


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    settings = ("--set", "cluster.dashboard_port=0", "--set", "engine.threads=1")
    with Server(DEPLOY / "small.toml", *settings) as running:
        yield running
