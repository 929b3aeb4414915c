"""A test bench for a gateway's core: instances record their commands, clients record their output."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from serving.gateway.core import events as e
from serving.gateway.core.gateway import Gateway
from serving.gateway.core.settings import GatewaySettings
from serving.ids import NodeId, ReplicaId, RequestId, SequenceId
from serving.values.instances import Status
from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.news import News, Prefilled, Tokens
from serving.values.orders import Add, Adopt, Order, Send
from serving.values.sequence import FinishReason, HandoffTicket, SamplingParams, SequenceSpec

IDLE = Status(0, 0, 0, 100, draining=False, progress_age_s=0.0, tokens_per_s=0.0)
BLOCK_TOKENS = 16


def settings(*pools: str, **changes: Any) -> GatewaySettings:
    """One gateway over some pools; both roles in two pools by default."""
    small = GatewaySettings("g", pools or ("prefill", "decode"), max_age_s=2.5, block_tokens=BLOCK_TOKENS)
    return replace(small, **changes)


def job(sequences: int = 1, max_tokens: int = 4, prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> GenerationJob:
    """A request."""
    few = SamplingParams(max_tokens=max_tokens)
    specs = [SequenceSpec(SequenceId(f"r/{i}"), tuple(prompt), few, **fields) for i in range(sequences)]
    return GenerationJob(RequestId("r"), tuple(specs))


class GatewayBench:
    """One core, its instances and clients.

    Attributes:
        now: time of the next event [s].
        sent: commands by instance.
        updates: output by job.
        failures: by job. over: finished jobs, in order.
    """

    def __init__(self, *pools: str, **changes: Any) -> None:
        self.core = Gateway(settings(*pools, **changes))
        self.now = 100.0
        self.sent: defaultdict[ReplicaId, list[Order]] = defaultdict(list)
        self.updates: defaultdict[int, list[SequenceUpdate]] = defaultdict(list)
        self.failures: dict[int, Fail] = {}
        self.retry_after_s: dict[int, float | None] = {}
        self.over: list[int] = []
        self.rejected: dict[int, e.Rejected] = {}
        self.broken: list[e.Broken] = []
        self.routed: list[e.Routed] = []
        self.prefetches: list[e.PrefetchKv] = []
        self._jobs = 0

    def tell(self, event: e.GatewayEvent) -> None:
        """Deliver an event, carry out its effects, and check that all ledgers balance."""
        for effect in self.core.on(event, self.now):
            match effect:
                case Send(replica=replica, order=order):
                    self.sent[replica].append(order)
                case SequenceUpdate(number=number):
                    assert number not in self.over, "output of a job that is over"
                    self.updates[number].append(effect)
                case e.JobFailed(number=number, failure=failure):
                    self.failures[number] = failure
                    self.retry_after_s[number] = effect.retry_after_s
                case e.JobOver(number=number):
                    assert number not in self.over, "a job ends once"
                    self.over.append(number)
                case e.Rejected(number=number):
                    self.rejected[number] = effect
                case e.Broken():
                    self.broken.append(effect)
                case e.Routed():
                    self.routed.append(effect)
                case e.PrefetchKv():
                    self.prefetches.append(effect)
        self.core.check()

    def up(self, pool: str, number: int = 0, *, kv_blocks: int = 100, status: Status | None = IDLE) -> ReplicaId:
        """Register an instance; it reports its load unless `status` is None."""
        replica = ReplicaId(f"{pool}#{number}")
        self.tell(e.InstanceUp(replica, pool, NodeId("n"), kv_blocks))
        if status is not None:
            self.tell(e.InstanceStatus(replica, status))
        return replica

    def submit(self, request: GenerationJob) -> int:
        """Submit a request. Returns: its number."""
        self._jobs += 1
        self.tell(e.Submit(self._jobs, request))
        return self._jobs

    def say(self, replica: ReplicaId, *news: News) -> None:
        """Deliver a message of an instance."""
        self.tell(e.InstanceSays(replica, news))

    def look_at(self, now: float) -> None:
        """Advance the time, and wake the core if it requested that."""
        self.now = now
        if self.core.next_wake() <= now:
            self.tell(e.Look())

    def hand_over(self, source: ReplicaId, add: Order, name: str = "t", **first: Any) -> None:
        """The prompt is computed, with one token."""
        assert isinstance(add, Add)
        ticket = HandoffTicket(name, source, NodeId("n"), "/s", "l", len(add.spec.prompt), ())
        self.say(source, Prefilled(Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0, **first), ticket))

    def tokens(self, number: int) -> list[tuple[int, ...]]:
        """Output of a job: its index and new tokens, update by update."""
        return [(update.index, *update.news.tokens) for update in self.updates[number]]

    def counts(self) -> tuple[int, int, int]:
        """Numbers of running jobs, queued jobs, and sequences."""
        return self.core.running, len(self.core.room), len(self.core.choices)


def ended(order: Order, position: int, *tokens: int) -> Tokens:
    """The last event of a submission."""
    assert isinstance(order, Add | Adopt)
    return Tokens(order.spec.sequence_id, position, tokens, cached_tokens=0, finish_reason=FinishReason.STOP)
