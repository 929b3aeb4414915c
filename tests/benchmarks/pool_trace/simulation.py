"""Prefill instances with queues over a cache, event by event: arrivals, starts and ends in virtual time.

An instance computes one prompt at a time, in order of arrival. At its start it fetches the longest cached prefix; the
time it takes is the rest divided by the instance's speed. At its end all of its blocks are stored. Copying blocks takes
no time, near or far: what is compared is what is *found*, and how long prompts wait for each other.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from loadgen.trace.mooncake import MOONCAKE_BLOCK_TOKENS as BLOCK_TOKENS
from serving.gateway.core.locality import PrefixHistory, route_prefill_by_locality
from serving.gateway.core.route_decision import InstanceView, RouteDecision
from serving.gateway.core.router import route_prefill
from serving.ids import NodeId, ReplicaId
from tests.benchmarks.pool_trace.memories import Memory
from tests.benchmarks.pool_trace.trace import Request

REPORT_EVERY = 200

Router = Callable[[Sequence[InstanceView], Request, int], RouteDecision]


@dataclass(slots=True)
class Instance:
    """One prefill instance."""

    queue: deque[tuple[Request, int]] = field(default_factory=deque)
    """Waiting prompts, with the tokens that each would have computed when it arrived."""
    queued_tokens: int = 0
    free_at: float = 0.0
    busy_s: float = 0.0
    running: Request | None = None


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    waits_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)

    @property
    def block_hit_rate(self) -> float:
        """Share of blocks that were found."""
        return self.hit_blocks / max(1, self.blocks)

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.hit_tokens / max(1, self.tokens)

    @property
    def imbalance(self) -> float:
        """Work of the busiest instance divided by the mean."""
        return max(self.busy_s) * len(self.busy_s) / max(1e-9, sum(self.busy_s))


def by_load(views: Sequence[InstanceView], request: Request, tie_break: int) -> RouteDecision:
    """The router of the peer-to-peer design: only the queues count."""
    return route_prefill(views, request.tokens, tie_break, 1.0)


def by_locality(history: PrefixHistory) -> Router:
    """The router of the KVCache-centric design, which remembers where it sent what."""

    def route(views: Sequence[InstanceView], request: Request, tie_break: int) -> RouteDecision:
        decision = route_prefill_by_locality(
            views, request.blocks, BLOCK_TOKENS, request.tokens, history, tie_break, 1.0
        )
        history.note(decision.replica, request.blocks)
        return decision

    return route


class Simulation:
    """One run; made, run once, thrown away."""

    def __init__(self, memory: Memory, router: Router, instances: int, tokens_per_s: float) -> None:
        """
        Args:
            tokens_per_s: uncached prompt tokens that one instance computes.
        """
        self._memory = memory
        self._router = router
        self._tokens_per_s = tokens_per_s
        self._instances = [Instance() for _ in range(instances)]
        self._ends: list[tuple[float, int]] = []
        self._outcome = Outcome()

    def run(self, requests: Sequence[Request], advance: Callable[[int], None] = lambda _: None) -> Outcome:
        """Play all requests to their end.

        Args:
            advance: told how many more requests have arrived.
        """
        for number, request in enumerate(requests, start=1):
            self._until(request.arrival_s)
            self._arrive(request, number)
            if number % REPORT_EVERY == 0:
                advance(REPORT_EVERY)
        self._until(float("inf"))
        advance(len(requests) % REPORT_EVERY)
        self._outcome.busy_s = [one.busy_s for one in self._instances]
        return self._outcome

    def _until(self, now: float) -> None:
        """All ends up to a moment; each may start the next prompt."""
        while self._ends and self._ends[0][0] <= now:
            time, index = heappop(self._ends)
            instance = self._instances[index]
            assert instance.running is not None
            self._memory.store(index, instance.running.blocks, time)
            instance.running = None
            self._start(index, time)

    def _arrive(self, request: Request, number: int) -> None:
        now = request.arrival_s
        decision = self._router([self._view(index, now) for index in range(len(self._instances))], request, number)
        index = int(decision.replica)
        # The instance looks up at once (in reality to prefetch), and so knows about how much work it has.
        expected = request.tokens - request.tokens_in(self._memory.fetch(index, request.blocks, now))
        instance = self._instances[index]
        instance.queue.append((request, expected))
        instance.queued_tokens += expected
        if instance.running is None:
            self._start(index, now)

    def _start(self, index: int, now: float) -> None:
        instance = self._instances[index]
        if not instance.queue:
            return
        request, expected = instance.queue.popleft()
        instance.queued_tokens -= expected
        matched = self._memory.fetch(index, request.blocks, now)
        # The last token is always computed: its logits give the first new one.
        hit = min(request.tokens_in(matched), request.tokens - 1)
        service_s = (request.tokens - hit) / self._tokens_per_s
        instance.running = request
        instance.busy_s += service_s
        instance.free_at = now + service_s
        heappush(self._ends, (instance.free_at, index))
        outcome = self._outcome
        outcome.blocks += len(request.blocks)
        outcome.hit_blocks += matched
        outcome.tokens += request.tokens
        outcome.hit_tokens += hit
        outcome.waits_s.append(now - request.arrival_s)
        outcome.ttfts_s.append(instance.free_at - request.arrival_s)

    def _view(self, index: int, now: float) -> InstanceView:
        instance = self._instances[index]
        running = max(0.0, instance.free_at - now) * self._tokens_per_s if instance.running else 0.0
        return InstanceView(
            replica=ReplicaId(f"{index:03}"),
            pool="prefill",
            node=NodeId(f"node-{index}"),
            queued_tokens=instance.queued_tokens + round(running),
            sequences=len(instance.queue) + (instance.running is not None),
            kv_blocks_free=1,
            kv_blocks_total=1,
        )
