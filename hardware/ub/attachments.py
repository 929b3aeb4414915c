"""The segments of others that one process has mapped, by path."""

import os
from pathlib import Path

from hardware.ub.segment import UbSegment


class Attachments:
    """Maps a segment at its first use and unmaps those of ended owners. For one thread.

    A removed file keeps its memory while any process maps it, so segments of ended owners are searched: at each new
    mapping, which is when processes come and go.
    """

    def __init__(self) -> None:
        self._segments: dict[Path, UbSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, path: str | os.PathLike[str]) -> UbSegment:
        """The segment at `path`, mapped.

        Raises: UbMissingError, UbCorruptError, UbBusyError, as `UbSegment.attach`.
        Effects: may map it; may close others.
        """
        where = Path(path)
        known = self._segments.get(where)
        if known is None:
            self._close_dead()
            known = self._segments[where] = UbSegment.attach(where)
        return known

    def forget(self, path: str | os.PathLike[str]) -> None:
        """Close one segment; the next `get` maps the file at its path by then. Unknown ones are ignored."""
        segment = self._segments.pop(Path(path), None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        """Close all of them."""
        for path in list(self._segments):
            self.forget(path)

    def _close_dead(self) -> None:
        for path, segment in list(self._segments.items()):
            if not segment.owner.is_alive():
                self.forget(path)
