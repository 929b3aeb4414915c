"""Changes of a KV ledger for others' routers: which blocks can be reused somewhere, and since when not.

A ledger notes its changes here in passing; another thread takes them and publishes them. Noting one costs an append.
The number of changes that wait is bounded: beyond it they are dropped, and `lost` tells the publisher to start again.
"""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from serving.ids import BlockHash

GPU = "GPU"
"""An instance's HBM."""
CPU = "CPU"
"""Memory of the KV-cache pool."""
STORAGE = "STORAGE"
"""The KV-cache pool's SSD tier."""


class BlocksStored(Struct, frozen=True):
    """Consecutive blocks of one chain can be reused from now on.

    Args:
        scope: what else the blocks belong to; the same block under two scopes is stored until both have removed it.
        parent: hash of the block before the first; None at the start of a chain, and where it is not known.
        tokens: of all these blocks; empty where they are not known.
        group: of layers with a cache of their own; None = the block has all layers.
    """

    medium: str
    hashes: Sequence[BlockHash]
    parent: BlockHash | None = None
    tokens: Sequence[int] = ()
    scope: object = None
    group: int | None = None


class BlocksRemoved(Struct, frozen=True):
    """Blocks are no longer there. Blocks that were never reported as stored may be among them."""

    medium: str
    hashes: Sequence[BlockHash]
    scope: object = None


KvChange = BlocksStored | BlocksRemoved


class KvChanges:
    """Changes that wait to be published: noted by the ledger's thread, taken by the publisher's.

    Args:
        namespaces: tenants whose blocks are published; nothing of others enters.
        most: changes that may wait.
    """

    def __init__(self, namespaces: Sequence[str], most: int) -> None:
        self.namespaces = frozenset(namespaces)
        self.most = most
        self.lost = False
        """Whether changes were dropped since `begin_again`; until then, further ones are dropped too."""
        self._waiting: deque[KvChange] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, change: KvChange) -> None:
        """Note a change. The sequences inside must not be modified afterwards."""
        if self.lost or len(self._waiting) >= self.most:
            self.lost = True
            return
        self._waiting.append(change)

    def take(self, most: int) -> list[KvChange]:
        """The oldest changes, at most this many. Effects: removes them."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(most, len(waiting)))]

    def begin_again(self) -> None:
        """Drop all that waits and accept changes again. Call it while the ledger cannot change."""
        self._waiting.clear()
        self.lost = False
