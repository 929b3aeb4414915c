"""Ports of virtual instances: step durations, KV transfers, and the gateways that receive their events."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from serving.ids import ReplicaId
from serving.instance.core.events import FetchOrder, PullOrder, StoreOrder
from serving.values.news import News
from serving.values.orders import Order


class StepDurations(Protocol):
    """Durations of steps [s]."""

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        """One prefill step of one instance; see `hardware.cost.loads.PrefillLoad`."""
        ...

    def decode(self, requests: float, context_tokens: float, mean_requests: float, groups: int = 0) -> float:
        """One decode iteration of one instance; see `hardware.cost.loads.DecodeLoad`.

        Args:
            groups: of dies that share their sequences, of the instance; 0 = as configured.
        """
        ...

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """Time that a prompt chunk on one die or group of a decode instance adds to a decode iteration."""
        ...


class Owner(Protocol):
    """The gateway that owns a sequence, as an instance sees it."""

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        """Receive the events of its sequences from one instance at one moment."""
        ...


Done = Callable[[Any], None]


class Movers(Protocol):
    """KV transfers of instances, in the background."""

    def pull(self, order: PullOrder, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        """Move a handoff's blocks over the RDMA plane; `done` gets (order, bytes, error or None)."""
        ...

    def fetch(self, order: FetchOrder, instance: ReplicaId, done: Done) -> None:
        """Load blocks from the KV-cache pool; `done` gets (order, report)."""
        ...

    def store(self, order: StoreOrder, instance: ReplicaId, done: Done) -> None:
        """Store blocks in the KV-cache pool; `done` gets the order."""
        ...


class InstancePort(Protocol):
    """One instance of an engine pool, as gateways and the cluster see it."""

    name: ReplicaId
    pool: str
    npus: int
    alive: bool
    kv_blocks: int

    @property
    def draining(self) -> bool:
        """Whether it accepts no new sequences."""
        ...

    def take(self, order: Order) -> None:
        """Execute a command of a gateway."""
        ...

    def status(self) -> tuple[int, int, int]:
        """Tokens to be computed, sequences on the instance, free KV blocks."""
        ...

    def bounds(self) -> tuple[int, int]:
        """Most sequences and most step tokens that run at once."""
        ...

    def waiting(self) -> int:
        """Sequences without blocks."""
        ...

    def tokens_per_s(self) -> float:
        """Tokens recently computed per second of step time; 0 = not known."""
        ...


# Instances that are up, by name: delivers the commands of gateways.


class Directory:
    """Delivers commands to instances, and reports if the instance is no longer up."""

    def __init__(self) -> None:
        self._instances: dict[ReplicaId, InstancePort] = {}

    def put(self, instance: InstancePort) -> None:
        """Add an instance that is up."""
        self._instances[instance.name] = instance

    def drop(self, name: ReplicaId) -> None:
        """Remove an instance that has stopped."""
        self._instances.pop(name, None)

    def give(self, name: ReplicaId, order: Order) -> bool:
        """Pass a command to `InstancePort.take`. Returns: whether the instance is up."""
        instance = self._instances.get(name)
        if instance is None:
            return False
        instance.take(order)
        return True


# Counters of the work that one virtual instance did.


class WorkDone(NamedTuple):
    """Work of an instance up to a moment, including the finished part of the running step; see `InstanceMeter`."""

    busy_s: float
    prompt_tokens: int
    forward_tokens: int
    attended_tokens: float = 0.0


class InstanceMeter:
    """Counters of one instance; they only grow."""

    __slots__ = (
        "attended_tokens",
        "busy_s",
        "forward_tokens",
        "output_tokens",
        "peak_batch",
        "peak_kv_share",
        "prompt_tokens",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        """A prefill step is counted at its start, decode iterations at the next change after their end."""
        self.busy_s = 0.0
        self.prompt_tokens = 0
        self.attended_tokens = 0.0
        """Sum over computed prompt tokens of the context that each attends to [tokens]."""
        self.forward_tokens = 0
        """Tokens fed through the layers, including draft tokens; they determine the expert traffic."""
        self.output_tokens = 0
        self.peak_batch = 0
        self.peak_kv_share = 0.0

    def step(self, duration_s: float, batch: int, prompt_tokens: int, attended_tokens: float, kv_share: float) -> None:
        """Count a step at its start."""
        self.steps += 1
        self.busy_s += duration_s
        self.prompt_tokens += prompt_tokens
        self.attended_tokens += attended_tokens
        self.forward_tokens += prompt_tokens
        if batch > self.peak_batch:
            self.peak_batch = batch
        if kv_share > self.peak_kv_share:
            self.peak_kv_share = kv_share
