"""Layout of a rank's window in the exchange: `native/window.h` and `native/announcement.h` in Python.

A test compares this file with the C++ definitions.
"""

import struct
from dataclasses import dataclass

from hardware.errors import SpecError
from hardware.ub.region import round_up

WINDOW_MAGIC = int.from_bytes(b"CMXWIN11", "little")
WINDOW_VERSION = 6
LINE = 64
MOST_RANKS = 64
MOST_CHOICES = 64
MICRO_BATCHES = 2
"""Of a step, at most; each has words and lists of its own."""

COUNT_BITS, ROUND_BITS, STEP_BITS, EPOCH_BITS = 18, 10, 22, 14
"""Fields of an announcement's 8-byte word, from the lowest."""

EPOCH_OFFSET = LINE
"""Offset of a window's epoch, 8 bytes [bytes]."""

MOST_ENTRIES = (1 << COUNT_BITS) - 2
"""Rows times experts of a row."""

_ENTRY_BYTES = 8


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Sizes of a window; those of a group's ranks are equal, but for `max_rows`.

    Attributes:
        ranks: of the group.
        max_rows: that a rank dispatches at once.
        top_k: experts of a row.
        row_bytes: of a row as experts multiply it, its scale included.
        result_bytes: of a row's result by one expert.

    Raises: SpecError for sizes that cannot be.
    """

    ranks: int
    max_rows: int
    top_k: int
    row_bytes: int
    result_bytes: int

    def __post_init__(self) -> None:
        least = min(self.ranks, self.max_rows, self.top_k, self.row_bytes, self.result_bytes)
        if least < 1 or self.ranks > MOST_RANKS or self.max_entries > MOST_ENTRIES or self.top_k > MOST_CHOICES:
            raise SpecError(
                f"{self} cannot be a window: all sizes above zero, at most {MOST_RANKS} ranks, {MOST_CHOICES} experts "
                f"of a row, and {MOST_ENTRIES} rows times experts of a row"
            )

    @property
    def max_entries(self) -> int:
        """Rows times experts of a row."""
        return self.max_rows * self.top_k


_SHAPE = struct.Struct("<QIII5I")  # magic, version, owner, role, then the shape


def read_shape(window: memoryview) -> WindowShape:
    """Sizes in a window's header.

    Raises: SpecError if it is no window of this version.
    """
    if window.nbytes < LINE:
        raise SpecError(f"{window.nbytes} bytes cannot be a window")
    magic, version, _owner, _role, *sizes = _SHAPE.unpack_from(window)
    if (magic, version) != (WINDOW_MAGIC, WINDOW_VERSION):
        raise SpecError(f"not a window of version {WINDOW_VERSION}")
    return WindowShape(*sizes)


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """Offsets of a window's parts [bytes], and its size."""

    membership: int
    bell: int
    progress: int
    words: int
    lists: int
    rows: int
    results: int
    bytes: int
    row_stride: int
    result_stride: int

    @classmethod
    def of(cls, shape: WindowShape) -> "WindowLayout":
        """The layout of windows of this shape."""
        row_stride = round_up(shape.row_bytes, LINE)
        result_stride = round_up(shape.result_bytes, LINE)
        words = 4 * LINE
        lists = words + 2 * MICRO_BATCHES * shape.ranks * LINE
        rows = lists + MICRO_BATCHES * shape.ranks * round_up(_ENTRY_BYTES * shape.max_entries, LINE)
        results = rows + shape.max_rows * row_stride
        whole = results + shape.max_entries * result_stride
        return cls(LINE, 2 * LINE, 3 * LINE, words, lists, rows, results, whole, row_stride, result_stride)


@dataclass(frozen=True, slots=True)
class Announcement:
    """Contents of one word: epoch, step, round, and how many entries the expert rank gets, or has answered."""

    epoch: int
    step: int
    round: int
    count: int

    def pack(self) -> int:
        """The word."""
        word = self.epoch
        for value, bits in ((self.step, STEP_BITS), (self.round, ROUND_BITS), (self.count, COUNT_BITS)):
            word = word << bits | value
        return word

    @classmethod
    def unpack(cls, word: int) -> "Announcement":
        """Contents of a word."""
        values = []
        for bits in (COUNT_BITS, ROUND_BITS, STEP_BITS, EPOCH_BITS):
            values.append(word & ((1 << bits) - 1))
            word >>= bits
        count, round_, step, epoch = values
        return cls(epoch, step, round_, count)
