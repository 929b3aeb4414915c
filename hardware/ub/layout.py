"""File layout of a UB segment.

    offset 0            one page      header: magic, version, sizes, owner process, session, next generation
    offset 4096         region table  one 128-byte entry per region
    offset data_start   capacity      bytes of the regions, page-aligned

Offsets of regions count from the start of the file, so that one number serves every process. All numbers are
little-endian; a reader with another byte order reads a wrong magic.

Theory of operation. Every change happens under the file's lock, but a process may be killed between any two stores. The
header is written last and in one piece, so a half-made segment is recognised. An entry is live when its generation is
not zero: that field is written last when a region is created and cleared first when it is released, so a killed writer
leaves a consistent table, and readers need no lock.
"""

import numpy as np

MAGIC = int.from_bytes(b"CMUBSEG1", "little")
VERSION = 1
PAGE = 4096
OWNER_BYTES = 80

HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("version", "<u4"),
        ("max_regions", "<u4"),
        ("data_start", "<u8"),
        ("capacity", "<u8"),
        ("owner_pid", "<u8"),
        ("owner_start", "<u8"),
        ("owner_namespace", "<u8"),
        ("session", "<u8"),
        ("next_generation", "<u8"),
    ]
)

ENTRY = np.dtype(
    [
        ("generation", "<u8"),
        ("offset", "<u8"),
        ("nbytes", "<u8"),
        ("pid", "<u8"),
        ("start", "<u8"),
        ("namespace", "<u8"),
        ("owner", f"S{OWNER_BYTES}"),
    ]
)

assert HEADER.itemsize <= PAGE
assert ENTRY.itemsize == 128


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def data_start(max_regions: int) -> int:
    """Offset of the regions' bytes in the file."""
    return PAGE + round_up(max_regions * ENTRY.itemsize, PAGE)
