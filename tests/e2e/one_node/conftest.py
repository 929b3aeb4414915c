"""One system for the whole folder, from start to Ctrl-C: one node, a prefill and a decode instance, a memory server.

Files run in the order of their names: files that fill the pool run after those that count its entries.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.one_node.case import POOL, segments
from tests.e2e.server import STOP_S, Server
from tests.e2e.topology import small


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=1)
    config.write_text(config.read_text().replace("[cluster]", "[cluster]\nray_metrics = true") + POOL)
    with Server(config) as running:
        session = running.session
        yield running
        took = running.interrupt()
        assert running.process.returncode == 0
        running.assert_nothing_left()
        assert not segments(session)
        assert running.err == ""
        assert took < STOP_S
