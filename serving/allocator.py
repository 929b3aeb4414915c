"""Keeps the C allocator from giving memory back to the kernel between two steps.

A prefill step allocates and frees tens of megabytes of activations. By default glibc hands large pieces back at once
and takes new ones at the next step, which the kernel must clear and map page by page.
"""

import ctypes

from hardware.units import MIB

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 256 * MIB
"""Most that stays with the process once everything is freed."""
LARGEST_KEPT_PIECE_BYTES = 32 * MIB
"""The most that glibc allows; larger pieces still go straight back."""


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory rather than to return it.

    Returns: False where the C library has no such setting; nothing is changed then.
    Effects: on the whole process, from now on.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_PIECE_BYTES) and kept)


def return_freed_memory() -> None:
    """Give everything that is free back to the kernel once, for example what loading a model has left.

    Effects: on the whole process, where the C library can do it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
