"""Moves of a simulated instance: the real bytes are moved immediately, then the predicted time passes.

They run in the threads that move KV anyway, so that no step waits for them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from hardware.cost.cost_model import CostModel
from serving.config.simulated_cost import AccountedKv
from serving.ids import BlockHash, BlockId
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import PoolContextCache
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.sequence import HandoffTicket

# Pacing of simulated time: each step starts at the previous one's end, and waits can be cancelled.
#
# A step's end is an absolute time: its start plus its predicted duration, scaled. The next step starts at that end, not
# when the engine's thread continues, so that neither the thread's own work nor late wake-ups accumulate: they count
# within the following step. Only an idle or very late thread restarts from the current time.

CATCH_UP_S = 0.01
"""Maximum real time by which a step may start in the past [s]: above the engine's work between two steps, below a
noticeable delay.
"""


class Pace:
    """Lets simulated time pass for one instance.

    Args:
        time_scale: simulated seconds per real second.
        now: real time [s].
    """

    def __init__(self, time_scale: float, now: Callable[[], float] = time.monotonic) -> None:
        self._scale = time_scale
        self._now = now
        self._begin = self._end = now() - 2 * CATCH_UP_S
        self._stopped = threading.Event()
        self.steps = 0
        self.late_steps = 0
        """Steps whose simulated end passed before their results were ready; if there are many, the time scale is too
        high.
        """

    def begin(self) -> None:
        """Start a step: at the previous one's end if that is recent, else now."""
        now = self._now()
        self._begin = self._end if now - self._end <= CATCH_UP_S else now

    def end(self, duration_s: float) -> None:
        """Wait until the started step has ended.

        Args:
            duration_s: in simulated time.
        """
        self._end = self._begin + self.real_seconds(duration_s)
        self.steps += 1
        self.late_steps += not self._wait_until(self._end)

    def wait(self, since: float, duration_s: float) -> None:
        """Wait until this much simulated time has passed since the real time `since`. Any thread."""
        self._wait_until(since + self.real_seconds(duration_s))

    def real_seconds(self, duration_s: float) -> float:
        """Real duration of a simulated one [s]."""
        return duration_s / self._scale

    def real_now(self) -> float:
        """Real time [s], for `wait`."""
        return self._now()

    def stop(self) -> None:
        """End all current and future waits."""
        self._stopped.set()

    def _wait_until(self, end: float) -> bool:
        """Returns: whether there was anything to wait for."""
        left = end - self._now()
        if left > 0:
            self._stopped.wait(left)
        return left > 0


# Moves of a simulated instance: the real bytes are moved immediately, then the predicted time passes.


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
        load_s: simulated time in which the instance loads so many bytes [s].
    """

    def __init__(self, inner: PoolContextCache, load_s: Callable[[float], float], kv: AccountedKv, pace: Pace) -> None:
        self._inner = inner
        self._load_s = load_s
        self._kv = kv
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
        seconds = self._load_s(nbytes)
        with self._lock:
            begin = max(since, self._free_at)
            self._free_at = begin + self._pace.real_seconds(seconds)
        self._pace.wait(begin, seconds)
        return replace(report, nbytes=nbytes)

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Store as `PoolContextCache.store`, without simulated time, since no step waits for it."""
        return self._inner.store(namespace, hashes, blocks)

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        """See `ContextCache.claim`."""
        self._inner.claim(namespace, claims)

    def facts(self) -> dict[str, Any]:
        """See `PoolContextCache.facts`; with accounted bytes."""
        return self._kv.accounted_facts(self._inner.facts())

    def close(self) -> None:
        """See `PoolContextCache.close`."""
        self._inner.close()
