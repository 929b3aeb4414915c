"""Freed memory is reused without the kernel's help. In a separate process: the setting cannot be undone."""

import platform
import subprocess
import sys

import pytest

_COUNT_FAULTS = """
import resource, sys
import numpy as np
from serving.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():  # pieces of 8 MiB, more than glibc keeps by itself
    pieces = [np.ones(1 << 20) for _ in range(6)]
    del pieces

if sys.argv[1] == "keep":
    assert keep_freed_memory()
work(), work()
before = faults()
work(), work()
print(faults() - before)
"""


def count_faults(how: str) -> int:
    command = [sys.executable, "-c", _COUNT_FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_reused() -> None:
    assert count_faults("keep") < count_faults("default") / 10
