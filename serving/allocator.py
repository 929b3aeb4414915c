"""Keeps the C allocator from returning memory to the kernel between two steps.

A prefill step allocates and frees tens of megabytes of activations. By default glibc returns large pieces immediately
and allocates new ones in the next step, which the kernel must clear and map page by page.
"""

import ctypes

from hardware.units import MIB

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 256 * MIB
"""Most memory that the process keeps after all is freed."""
LARGEST_KEPT_PIECE_BYTES = 32 * MIB
"""glibc's maximum; larger pieces are still returned immediately."""


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory instead of returning it.

    Returns: False if the C library has no such setting; then nothing changes.
    Effects: on the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_PIECE_BYTES) and kept)


def return_freed_memory() -> None:
    """Return all free memory to the kernel once, for example after a model was loaded.

    Effects: on the whole process, if the C library supports it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
