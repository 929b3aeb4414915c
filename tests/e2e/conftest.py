"""One random checkpoint and its reference for all clusters."""

from pathlib import Path

import pytest

from serving.gateway.api.tokenizer import Tokenizer
from tests.live.workload import Reference
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random float32 model of a few thousand weights."""
    return write_random_checkpoint(tmp_path_factory.mktemp("e2e") / "model")


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """What the model says without engine, pools and batches."""
    return Reference(checkpoint)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    """The checkpoint's tokenizer."""
    return Tokenizer.from_folder(checkpoint)
