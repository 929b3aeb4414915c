"""Shared fixtures of trace and workload tests."""

from tests.loadgen.workload.conftest import bpe, words

__all__ = ["bpe", "words"]
