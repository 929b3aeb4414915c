"""One system for the whole folder: `deploy/small.toml` as `make serve` starts it, with speculation switched on.

Files run in the order of their names: README's answers need a fresh system, and the last file kills it.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server
from tests.e2e.topology import DEPLOY


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    settings = ("cluster.dashboard_port=0", "engine.draft_tokens=3", "engine.threads=1")
    with Server(DEPLOY / "small.toml", *(word for one in settings for word in ("--set", one))) as running:
        yield running
