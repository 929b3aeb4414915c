"""The KV-cache pool of one instance: `ContextCache` over pool clients.

Blocks are copied straight between the instance's KV arena and the servers' memory. No failure raises: it is a miss, or
a block that is not stored, and is counted by reason.
"""

import logging
import time
from collections.abc import Sequence
from queue import LifoQueue
from typing import Any, Protocol

from msgspec.structs import replace

from serving.ids import BlockHash, BlockId
from serving.kvpool.core.entry import Space
from serving.kvpool.core.prefix_find import lookup_deadline
from serving.kvpool.live.meters import Meters
from serving.kvpool.live.pool_client import PoolClient
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, MissReason, StoreReport

logger = logging.getLogger(__name__)

SAME_ERROR_S = 60.0


class ArenaMirror(Protocol):
    """Set when the KV cache is on an accelerator and the arena is only its image."""

    def save(self, blocks: Sequence[BlockId]) -> None:
        """Device to arena; done when it returns."""
        ...

    def load(self, blocks: Sequence[BlockId]) -> None:
        """Arena to device; done when it returns."""
        ...


class PoolContextCache:
    """Fetches and stores the blocks of one instance.

    As many fetches may run at once as there are clients for them, so that one that waits for a slow disk does not hold
    up the others; and one store.

    Args:
        fetchers: clients for fetches, at least one.
        storer: the client for stores. All of them should share their `segments`.
        layout: model, weights, dtype and block shape; blocks of another layout are never seen.
        arena: the KV blocks, `num_blocks * block_bytes` writable bytes.
        get_timeout_s, put_timeout_s: a fetch or a store takes no longer.
    """

    def __init__(
        self,
        fetchers: Sequence[PoolClient],
        storer: PoolClient,
        *,
        layout: str,
        arena: memoryview,
        block_bytes: int,
        get_timeout_s: float = 1.0,
        put_timeout_s: float = 5.0,
        mirror: ArenaMirror | None = None,
    ) -> None:
        self._fetchers = tuple(fetchers)
        self._idle: LifoQueue[PoolClient] = LifoQueue()  # the last one used has its connections open
        for fetcher in fetchers:
            self._idle.put(fetcher)
        self._storer = storer
        self._layout = layout
        self._arena = arena.cast("B")
        self._block_bytes = block_bytes
        self._get_timeout_s = get_timeout_s
        self._put_timeout_s = put_timeout_s
        self._mirror = mirror
        self._meters = Meters("fetch", "lookup", "get", "store")
        self._logged: dict[type[BaseException], float] = {}

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        """Fill leading arena blocks with the blocks of these hashes, each verified.

        The content of blocks behind the report's count is undefined.

        Args:
            rows: as `ContextCache.fetch`.
        """
        start = time.monotonic()
        client = self._idle.get()
        try:
            report = self._fetch(client, Space(namespace, self._layout), hashes, blocks, start, rows)
        except Exception as error:  # a miss costs a recomputation; an exception here would cost the request
            self._log(error, "a fetch")
            report = FetchReport(0, lost_blocks=len(blocks), reason=MissReason.ERROR)
        finally:
            self._idle.put(client)
        lost = () if report.reason is None else ((f"blocks_lost_{report.reason.value}", report.lost_blocks),)
        self._meters.observe(
            "fetch",
            time.monotonic() - start,
            (
                ("fetches", 1),
                ("blocks_asked", len(blocks)),
                ("blocks_pulled_dram", report.blocks - report.from_ssd),
                ("blocks_pulled_ssd", report.from_ssd),
                ("bytes_pulled", report.nbytes),
                *lost,
            ),
        )
        return report

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Publish full, computed blocks, whose bytes must not change during the call."""
        start = time.monotonic()
        try:
            report = self._store(Space(namespace, self._layout), hashes, blocks, start)
        except Exception as error:  # as in `fetch`
            self._log(error, "a store")
            report = StoreReport(dropped=((MissReason.ERROR.value, len(blocks)),))
        self._meters.observe(
            "store",
            time.monotonic() - start,
            (
                ("stores", 1),
                ("blocks_stored", report.stored),
                ("blocks_present", report.present),
                ("bytes_stored", report.nbytes),
                *((f"blocks_dropped_{reason.replace(' ', '_')}", count) for reason, count in report.dropped),
            ),
        )
        return report

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        """Claim stored blocks for sessions. A server that does not respond in time misses that."""
        try:
            deadline, space = time.monotonic() + self._put_timeout_s, Space(namespace, self._layout)
            outcomes = [one for claim in claims for one in self._storer.claim(space, (claim,), deadline)]
        except Exception as error:  # as in `fetch`
            self._log(error, "a claim")
        else:
            self._meters.add("blocks_claimed", sum([one.blocks for one in outcomes]))

    def facts(self) -> dict[str, Any]:
        """Counters and latency histograms as plain values, in the form of `Meters.snapshot`.

        Counters: fetches, lookups, blocks_asked, blocks_pulled_{dram,ssd}, blocks_lost_<reason>, bytes_pulled, stores,
        blocks_{stored,present,claimed}, blocks_dropped_<reason>, bytes_stored. Histograms [s]: fetch (lookup and get
        together), lookup, get, store.

        Also unmaps segments of dead servers. May be called from any thread.
        """
        for segments in {id(client.segments): client.segments for client in (*self._fetchers, self._storer)}.values():
            segments.drop_dead()
        return self._meters.snapshot()

    def warm(self) -> None:
        """Connect to the servers, so that the first fetch is fast. Call it before the threads start."""
        for client in (self._fetchers[-1], self._storer):  # the one that is used first, and most
            client.warm(time.monotonic() + self._put_timeout_s)

    def close(self) -> None:
        """Close all clients, and with them their leases. Call it when no thread uses the cache any more."""
        for client in (*self._fetchers, self._storer):
            client.close()

    def _fetch(
        self,
        client: PoolClient,
        space: Space,
        hashes: Sequence[BlockHash],
        blocks: Sequence[BlockId],
        start: float,
        rows: FetchedRows | None,
    ) -> FetchReport:
        deadline = start + self._get_timeout_s
        find = client.lookup(space, hashes, lookup_deadline(start, self._get_timeout_s))
        found_at = time.monotonic()
        self._meters.observe("lookup", found_at - start, (("lookups", 1),))
        if not find.blocks:
            return FetchReport(0, lost_blocks=find.prefix.lost_blocks, reason=find.prefix.reason)
        found, targets = find.blocks, blocks[: find.blocks]
        if rows is not None:
            needed = rows.needed(found)
            find, surplus = find.split(needed)
            if surplus.blocks:
                client.release(surplus, deadline)
            targets = [blocks[index] for index in needed]
        report = client.read(find, self._targets(targets), deadline)
        if self._mirror is not None and report.blocks:
            self._mirror.load(targets[: report.blocks])
        self._meters.observe("get", time.monotonic() - found_at)
        return report if rows is None else _of_rows(report, len(targets), found - found % rows.split.width)

    def _store(self, space: Space, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], start: float) -> StoreReport:
        if self._mirror is not None:
            self._mirror.save(blocks)
        items = list(zip(hashes, self._targets(blocks), strict=True))
        return self._storer.write(space, items, start + self._put_timeout_s)

    def _targets(self, blocks: Sequence[BlockId]) -> list[memoryview]:
        arena, size = self._arena, self._block_bytes
        return [arena[block * size : (block + 1) * size] for block in blocks]

    def _log(self, error: Exception, what: str) -> None:
        now = time.monotonic()
        kind = type(error)
        if now - self._logged.get(kind, float("-inf")) >= SAME_ERROR_S:
            self._logged[kind] = now
            logger.error("%s failed unexpectedly; it counts as a miss", what, exc_info=error)


def _of_rows(report: FetchReport, wanted: int, found: int) -> FetchReport:
    """Report of rows of which only some blocks were read: they are usable only if no block is missing."""
    if report.blocks == wanted:
        return replace(report, blocks=found)
    return replace(report, blocks=0, from_ssd=0, lost_blocks=found)
