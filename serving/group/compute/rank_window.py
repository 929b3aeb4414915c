"""Windows of a group's ranks in shared memory: each rank makes its own and maps those of its peers."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from hardware.ub.exchange_layout import EPOCH_OFFSET, WindowShape
from hardware.ub.segment import UbSegment
from serving.errors import GroupError, ModelError
from serving.model.native.library import load
from serving.model.native.rank_group import format_window, raise_epoch, window_bytes


class RankWindow:
    """One window, made or mapped by this process; a context manager that closes it.

    Attributes:
        memory: the window, writable; valid until this is closed.
    """

    def __init__(self, segment: UbSegment, *, own: bool) -> None:
        self._segment = segment
        self._own = own
        (region,) = segment.regions()
        self.memory = segment.view(region)

    @classmethod
    def create(cls, path: Path, shape: WindowShape, rank: int) -> Self:
        """Make the window of a rank of this process, in the first epoch of a group of all `shape.ranks`.

        Raises: UbFullError, UbExistsError as `UbSegment.create`; ModelError if the sizes cannot be.
        Effects: a UB segment, removed by `close`.
        """
        library = load()
        if library is None:
            raise ModelError("there is no native library here, and so no groups of ranks")
        segment = UbSegment.create(path, window_bytes(shape), max_regions=1)
        try:
            region = segment.allocate(window_bytes(shape), owner=f"rank {rank}")
            format_window(library, segment.view(region), shape, rank, (1 << shape.ranks) - 1)
            return cls(segment, own=True)
        except BaseException:
            segment.remove()
            raise

    @classmethod
    def attach(cls, path: str | Path) -> Self:
        """Map the window of a peer.

        Raises: UbError if there is none; GroupError if the segment is not such a window.
        """
        segment = UbSegment.attach(path)
        if len(segment.regions()) != 1:
            segment.close()
            raise GroupError(f"{path} is not a window of a rank")
        return cls(segment, own=False)

    @property
    def path(self) -> Path:
        """Path of the segment, for peers."""
        return self._segment.path

    @property
    def epoch(self) -> int:
        """Epoch that its owner has started."""
        return int.from_bytes(self.memory[EPOCH_OFFSET : EPOCH_OFFSET + 8], sys.byteorder)

    def raise_epoch(self, epoch: int, members: int) -> None:
        """Implements `rank_group.raise_epoch` for this rank."""
        library = load()
        assert library is not None, "a window without a library"
        raise_epoch(library, self.memory, epoch, members)

    def close(self) -> None:
        """Unmap it; the rank's own segment is removed."""
        if self._own:
            self._segment.remove()
        else:
            self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
