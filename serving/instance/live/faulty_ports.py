"""Ports of an instance with fault injection: long steps, corrupt handoffs, slow links.

They wrap the real ports, so that all other code is the production code. Only the slow link between instances is
injected at a lower level, in the transport, because link probes must observe it as pulls do.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from serving.config.health import ChaosConfig
from serving.faults.injected import FaultReader, faults_path, session_of
from serving.ids import BlockHash, BlockId, ReplicaId
from serving.instance.core.ports import GroupExecutor, KvTransport, PreparingExecutor, StepExecutor
from serving.instance.live.compute import InstanceCache
from serving.instance.live.ub_transport import LinkFaults
from serving.values.instances import InstancePlace
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.sequence import HandoffTicket
from serving.values.step_plan import StepPlan, StepResult

Sleep = Callable[[float], None]


class FaultyPorts:
    """Wraps an engine's ports with faults if the configuration allows it; otherwise returns the ports unchanged."""

    def __init__(self, config: ChaosConfig, place: InstancePlace) -> None:
        self._config = config
        path = faults_path(place.segment_path.parent, session_of(place.segment_path.name))
        self._faults = FaultReader(path, place.replica)

    def executor(self, inner: StepExecutor) -> StepExecutor:
        """The executor, possibly with faults."""
        if not self._config.enabled or self._config.least_step_s <= 0:
            return inner
        lasting = LastingSteps(inner, self._config.least_step_s)
        return LastingGroupSteps(inner, lasting) if isinstance(inner, GroupExecutor) else lasting

    def link(self) -> LinkFaults | None:
        """Fault of the transport, in pulls and in probes; None = none."""
        return self._slow_link if self._config.enabled else None

    def transport(self, inner: KvTransport) -> KvTransport:
        """The transport of handoffs, possibly with faults."""
        return FaultyTransport(inner, self._faults) if self._config.enabled else inner

    def cache(self, inner: InstanceCache | None) -> InstanceCache | None:
        """The KV-cache pool's port, possibly with faults."""
        return FaultyCache(inner, self._faults) if inner is not None and self._config.enabled else inner

    def _slow_link(self, peer: ReplicaId, nbytes: int) -> float:
        """Delay of a slow link, which applies to this puller and any peer; see `LinkFaults`."""
        slow = self._faults.active("slow_link")
        return 0.0 if slow is None else slow.delay_s


class LastingSteps:
    """A `StepExecutor` with a minimum step time, like that of a large model."""

    def __init__(self, inner: StepExecutor, least_s: float, sleep: Sleep = time.sleep) -> None:
        self._inner = inner
        self._least_s = least_s
        self._sleep = sleep

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step, as `StepExecutor.execute`. Effects: waits for the rest of the minimum time."""
        return self._last(partial(self._inner.execute, plan))

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult] | None:
        """Lay out the following step, as `PreparingExecutor.prepare`, if the wrapped executor supports it."""
        run = self._inner.prepare(plan) if isinstance(self._inner, PreparingExecutor) else None
        return partial(self._last, run) if run is not None else None

    def _last(self, run: Callable[[], StepResult]) -> StepResult:
        begun = time.perf_counter()
        result = run()
        left = self._least_s - (time.perf_counter() - begun)
        if left > 0:
            self._sleep(left)
        return result


class LastingGroupSteps:
    """A `GroupExecutor` with a minimum time for its own steps, but not for its peers'."""

    def __init__(self, group: GroupExecutor, lasting: LastingSteps) -> None:
        self.execute, self.prepare = lasting.execute, lasting.prepare
        self.serve, self.wake = group.serve, group.wake


class FaultyTransport:
    """A `KvTransport` whose pulls can flip a bit."""

    def __init__(self, inner: KvTransport, faults: FaultReader) -> None:
        self._inner = inner
        self._faults = faults

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Register unchanged, see `KvTransport.register`."""
        return self._inner.register(ticket_id, blocks, hashes, computed_tokens)

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Pull as `KvTransport.pull`, with the injected faults.

        A bit is flipped in transit, not in memory: steps read their instance's blocks unchecked (real memory has ECC),
        so a bit flipped there would cause an undetectable wrong result.

        Raises: as `KvTransport.pull`; HandoffChecksumError if a bit flip is injected.
        """
        if len(ticket.blocks) > first_block and self._faults.take("wrong_bytes") is not None:
            broken = replace(ticket.blocks[first_block], checksum=ticket.blocks[first_block].checksum ^ 1)
            behind = ticket.blocks[first_block + 1 :]
            ticket = replace(ticket, blocks=(*ticket.blocks[:first_block], broken, *behind))
        return self._inner.pull(ticket, first_block, blocks)


class FaultyCache:
    """The KV-cache pool over a possibly slow link."""

    def __init__(self, inner: InstanceCache, faults: FaultReader, sleep: Sleep = time.sleep) -> None:
        self._inner = inner
        self._faults = faults
        self._sleep = sleep

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        """Fetch as `ContextCache.fetch`, with the link's delay."""
        self._delay()
        return self._inner.fetch(namespace, hashes, blocks, rows)

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Store as `ContextCache.store`, with the link's delay."""
        self._delay()
        return self._inner.store(namespace, hashes, blocks)

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        """Claim as `ContextCache.claim`, with the link's delay."""
        self._delay()
        self._inner.claim(namespace, claims)

    def facts(self) -> dict[str, Any]:
        """See `InstanceCache.facts`."""
        return self._inner.facts()

    def close(self) -> None:
        """See `InstanceCache.close`."""
        self._inner.close()

    def _delay(self) -> None:
        slow = self._faults.active("slow_link")
        if slow is not None:
            self._sleep(slow.delay_s)
