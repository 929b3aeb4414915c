"""Moves of a simulated instance: the real bytes are moved immediately, then the predicted time passes.

They run in the threads that move KV anyway, so that no step waits for them.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from hardware.cost.cost_model import CostModel
from serving.accounted_kv import AccountedKv
from serving.ids import BlockHash, BlockId
from serving.instance.live.pace import Pace
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import PoolContextCache
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.sequence import HandoffTicket


class TimedTransport:
    """A `KvTransport` that takes predicted time. Several pulls may run concurrently, each over a separate die's link.

    Args:
        on_moved: called with the accounted bytes of each completed pull.
    """

    def __init__(
        self,
        inner: UbTransport,
        cost: CostModel,
        kv: AccountedKv,
        block_tokens: int,
        pace: Pace,
        on_moved: Callable[[int], None],
    ) -> None:
        self._inner = inner
        self._cost = cost
        self._kv = kv
        self._block_tokens = block_tokens
        self._pace = pace
        self._on_moved = on_moved
        self._lock = threading.Lock()

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Register as `UbTransport.register`, without additional time."""
        return self._inner.register(ticket_id, blocks, hashes, computed_tokens)

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Pull as `UbTransport.pull`, in predicted time.

        Returns: accounted bytes moved.
        Raises: HandoffError, likewise.
        Effects: waits for the transfer time of the bytes over one RDMA link.
        """
        since = self._pace.real_now()
        self._inner.pull(ticket, first_block, blocks)
        missing = ticket.computed_tokens - first_block * self._block_tokens
        nbytes = min(missing, len(blocks) * self._block_tokens) * self._kv.token_bytes
        self._pace.wait(since, self._cost.handoff_s(nbytes))
        with self._lock:
            self._on_moved(nbytes)
        return nbytes


class TimedCache:
    """A `ContextCache` whose fetches take predicted time, one after the other over the instance's links to the pool.

    Args:
        npus: number of the instance's NPUs, all of which load.
        gb_per_s: effective rate of one NPU; None = that of the device file.
    """

    def __init__(
        self, inner: PoolContextCache, cost: CostModel, kv: AccountedKv, npus: int, gb_per_s: float | None, pace: Pace
    ) -> None:
        self._inner = inner
        self._cost = cost
        self._kv = kv
        self._npus = npus
        self._gb_per_s = gb_per_s
        self._pace = pace
        self._lock = threading.Lock()
        self._free_at = 0.0

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        """Fetch as `PoolContextCache.fetch`; the report has accounted bytes.

        Effects: waits for the loading time of the blocks, after earlier fetches.
        """
        since = self._pace.real_now()
        report = self._inner.fetch(namespace, hashes, blocks, rows)
        if not report.blocks:
            return report
        nbytes = report.blocks * self._kv.block_bytes
        seconds = self._cost.pool_load_s(nbytes, self._npus, self._gb_per_s)
        with self._lock:
            begin = max(since, self._free_at)
            self._free_at = begin + self._pace.real_seconds(seconds)
        self._pace.wait(begin, seconds)
        return replace(report, nbytes=nbytes)

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Store as `PoolContextCache.store`, without simulated time, since no step waits for it."""
        return self._inner.store(namespace, hashes, blocks)

    def facts(self) -> dict[str, Any]:
        """See `PoolContextCache.facts`; with accounted bytes."""
        return self._kv.accounted_facts(self._inner.facts())

    def close(self) -> None:
        """See `PoolContextCache.close`."""
        self._inner.close()
