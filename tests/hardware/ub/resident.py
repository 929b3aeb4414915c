"""Pages in this process's page tables, for tests and benchmarks of memory."""

import os

import numpy as np

from hardware.ub.region import PAGE

_PRESENT = np.uint64(1 << 63)


def resident_bytes(view: memoryview) -> int:
    """Bytes of the pages under a view that this process currently maps; whole pages."""
    start = np.frombuffer(view, np.uint8).ctypes.data
    first, behind = start // PAGE, -(-(start + view.nbytes) // PAGE)
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)
    try:
        raw = os.pread(fd, 8 * (behind - first), 8 * first)
    finally:
        os.close(fd)
    return int(np.count_nonzero(np.frombuffer(raw, np.uint64) & _PRESENT)) * PAGE
