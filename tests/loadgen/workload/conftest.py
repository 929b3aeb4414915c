"""Shared fixtures of workload tests."""

import pytest

from loadgen.workload.calibrate import calibrate
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import Words
from tests.loadgen.workload.counters import byte_level_bpe


@pytest.fixture(scope="session")
def bpe() -> LocalTokenizer:
    """A byte-level tokenizer that adds a token at the start of every text."""
    return byte_level_bpe()


@pytest.fixture(scope="session")
def words(bpe: LocalTokenizer) -> Words:
    """Words for it."""
    return calibrate(bpe)
