"""What the tests of workloads share."""

import pytest

from loadgen.workload.calibrate import calibrate
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import Words
from tests.loadgen.workload.counters import byte_level_bpe


@pytest.fixture(scope="session")
def bpe() -> LocalTokenizer:
    """A byte-level tokenizer that begins every text with a token of its own."""
    return byte_level_bpe()


@pytest.fixture(scope="session")
def words(bpe: LocalTokenizer) -> Words:
    """Words for it."""
    return calibrate(bpe)
