"""One random checkpoint and its reference for all systems; a check between the scenes of a shared one."""

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.gateway.api.tokenizer import Tokenizer
from tests.e2e.server import Server, wait_for
from tests.live.workload import Reference
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random float32 model of a few thousand weights."""
    return write_random_checkpoint(tmp_path_factory.mktemp("e2e") / "model")


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """Expected output, computed without engine, pools and batches."""
    return Reference(checkpoint)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    """The checkpoint's tokenizer."""
    return Tokenizer.from_folder(checkpoint)


@pytest.fixture(autouse=True)
def returned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each scene that no blocks are held, no requests are queued, and every segment belongs to a listed
    process.

    Groups of ranks have additional segments for the exchange, which are not counted.
    """
    yield
    server = request.node.funcargs.get("server")
    if not isinstance(server, Server) or server.process.poll() is not None or not server.processes():
        return

    def at_rest() -> bool:
        status = server.cluster()
        servers = status["kvcache"]["servers"] if "kvcache" in status else []
        listed = sum(len(pool["replicas"]) for pool in status["pools"]) + len(servers)
        grouped = any((replica["ranks"] or 1) > 1 for pool in status["pools"] for replica in pool["replicas"])
        return not server.busy() and (grouped or len(server.segments_now()) <= listed)

    try:
        wait_for(at_rest, "the system is as the scene found it", 60, server.cluster)
    except urllib.error.URLError as error:
        pytest.fail(f"the scene left a system that does not answer: {error}")
