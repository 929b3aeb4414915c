"""Outcomes of pool requests, with the names used in requests, metrics and logs."""

from enum import Enum

from msgspec import Struct


class MissReason(Enum):
    """Why blocks that the pool had, or might have had, are recomputed. Plain absence is a miss, not a reason."""

    TIMEOUT = "timeout"
    """A server did not respond in time."""
    UNREACHABLE = "unreachable"
    """A server is down, or its connection broke."""
    CHECKSUM = "checksum"
    """The bytes differ from those that had been stored."""
    GONE = "gone"
    """Found, but removed before it was read: evicted, deleted, or unreadable on SSD."""
    ERROR = "error"
    """Any other reason, which is in the log."""


class FetchReport(Struct, frozen=True, gc=False):
    """Result of fetching consecutive blocks.

    Args:
        blocks: leading blocks that are now in place, verified.
        from_ssd: number of them read from SSD.
        lost_blocks: later blocks that the pool had announced, or that could not be requested, because of `reason`.
        nbytes: bytes moved.
    """

    blocks: int
    from_ssd: int = 0
    lost_blocks: int = 0
    reason: MissReason | None = None
    nbytes: int = 0


class StoreReport(Struct, frozen=True, gc=False):
    """Result of publishing blocks; never an error for the engine.

    Args:
        stored: new in the pool.
        present: already in the pool.
        dropped: not stored, by reason (`full`, `quota`, `timeout`, `unreachable`, ...).
        nbytes: bytes copied into the pool.
    """

    stored: int = 0
    present: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    nbytes: int = 0
