"""A random model with its tokenizer, for all tests of the evaluation."""

from pathlib import Path

import pytest

from serving.gateway.api.tokenizer import Tokenizer
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float32, reads 320 tokens ids."""
    return write_random_checkpoint(tmp_path_factory.mktemp("evaluated"))


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    """Byte-level, without a token before a text."""
    return Tokenizer.from_folder(checkpoint)
