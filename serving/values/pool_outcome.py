"""Outcomes of asking the pool, in the words that requests, metrics and logs use."""

from enum import Enum

from msgspec import Struct


class MissReason(Enum):
    """Why blocks that the pool had, or might have had, are computed again. Plain absence is no reason: it is a miss."""

    TIMEOUT = "timeout"
    """A server did not answer in time."""
    UNREACHABLE = "unreachable"
    """A server is gone, or its connection broke."""
    CHECKSUM = "checksum"
    """The bytes were not those that had been stored."""
    GONE = "gone"
    """Found, but removed before it was read: evicted, deleted, or unreadable on SSD."""
    ERROR = "error"
    """Anything else; the log says what."""


class FetchReport(Struct, frozen=True, gc=False):
    """Result of fetching consecutive blocks.

    Args:
        blocks: leading blocks that are now in place, verified.
        from_ssd: how many of them came from SSD.
        lost_blocks: blocks behind those that the pool had promised, or could not be asked for, because of `reason`.
        nbytes: bytes moved.
    """

    blocks: int
    from_ssd: int = 0
    lost_blocks: int = 0
    reason: MissReason | None = None
    nbytes: int = 0


class StoreReport(Struct, frozen=True, gc=False):
    """Result of publishing blocks; nothing of it is ever an error to the engine.

    Args:
        stored: new in the pool.
        present: were there already.
        dropped: not stored, by reason (`full`, `quota`, `timeout`, `unreachable`, ...).
        nbytes: bytes copied into the pool.
    """

    stored: int = 0
    present: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    nbytes: int = 0
