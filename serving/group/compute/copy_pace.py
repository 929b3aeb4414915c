"""Byte rate of copies that must not disturb concurrent steps."""

import time
from collections.abc import Callable

from serving.errors import ExpertError


class CopyPace:
    """Wait after each piece of a copy according to the rate. One thread at a time.

    A pause is not compensated by a higher rate: the rate holds over every interval, up to one piece.

    Args:
        bytes_per_s: above 0.
        wait: waits for a time [s]; returns True if the copy is to be given up.
        clock: monotonic time [s].
    """

    def __init__(
        self, bytes_per_s: float, wait: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s, self._wait, self._clock = bytes_per_s, wait, clock
        self._free_at = 0.0

    def __call__(self, nbytes: int) -> None:
        """Wait after a copied piece.

        Raises: ExpertError if the copy is to be given up.
        """
        now = self._clock()
        self._free_at = max(now, self._free_at) + nbytes / self._bytes_per_s
        if self._wait(self._free_at - now):
            raise ExpertError("the move was abandoned")
