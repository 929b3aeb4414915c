"""One random checkpoint and one reference for all tests of the live path; a folder in shared memory for each test."""

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serving.config.serve import ServeConfig
from serving.values.pool_view import PoolView
from tests.kvpool.patience import be_patient
from tests.live.harness import Pools, Start, small_config
from tests.live.workload import Reference
from tests.model.random_checkpoint import write_random_checkpoint

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, since a busy machine is no failure."""
    be_patient(monkeypatch)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random float32 model of a few thousand weights."""
    return write_random_checkpoint(tmp_path_factory.mktemp("live") / "model")


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """Expected output, computed without engine, pools and batches."""
    return Reference(checkpoint)


@pytest.fixture
def shm() -> Iterator[Path]:
    """An empty folder in shared memory, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cloudmatrix-test-", dir=SHARED_MEMORY))
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture
async def started(checkpoint: Path, shm: Path) -> AsyncIterator[Start]:
    """Pools of some roles, with a link of the gateway to each instance.

    Keywords are sections of `small_config`, or `config` in its place, and arguments of `Pools`.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *roles: str,
            config: ServeConfig | None = None,
            nodes: Sequence[str] = ("node",),
            pool_view: Callable[[], PoolView] | None = None,
            **sections: Any,
        ) -> Pools:
            mode = "aggregated" if "aggregated" in roles else "disaggregated"
            made = config or small_config(checkpoint, mode=mode, **sections)
            pools = await stack.enter_async_context(Pools(made, shm, nodes, pool_view))
            await pools.start(*roles)
            return pools

        yield start
