"""What the tests of traces share with those of workloads."""

from tests.loadgen.workload.conftest import bpe, words

__all__ = ["bpe", "words"]
