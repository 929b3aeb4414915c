"""Compute of an instance: real tensors, or predicted time. The instance around it is the same.

make_compute ──► memory of the dies booked ──► arena of blocks ──► attach ──► executor
                                                              └──► transport, cache: as they are, or timed
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hardware.clock import Clock
from hardware.device.instance import VirtualInstance
from serving.errors import ConfigError
from serving.grammar.compile import Grammars
from serving.instance.core.ports import ContextCache, KvTransport, StepExecutor
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import ArenaMirror, PoolContextCache
from serving.values.expert_moves import ExpertOrder, RankEvent
from serving.values.group import RankOffer, RegroupOrder
from serving.values.layer_split import LayerSplit


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The KV blocks of one instance.

    Args:
        real_bytes: of one block in the UB segment.
        block_bytes: of one block in HBM; the same unless KV is only accounted.
        split: how blocks share the model's layers; None = each has all.
    """

    count: int
    real_bytes: int
    block_bytes: int
    split: LayerSplit | None = None

    @property
    def width(self) -> int:
        """Blocks for the same positions: together they have all layers."""
        return 1 if self.split is None else self.split.width


class GroupMember(Protocol):
    """A rank's place in its group."""

    def offer(self, layout: str) -> RankOffer:
        """Facts that the peers of this rank need, and the shell. Any thread.

        Args:
            layout: see `Attached.layout`.
        """
        ...

    @property
    def version(self) -> int:
        """Version of the latest map received; 0 = none. Any thread."""
        ...

    @property
    def using(self) -> int:
        """Version of the map that it computes by; 0 before it has joined. Any thread."""
        ...

    def carry_out(self, orders: Sequence[ExpertOrder], answered: Callable[[tuple[RankEvent, ...]], None]) -> None:
        """Execute the commands of a shell's mover on this rank. Any thread.

        Args:
            answered: called once, on any thread, when all have finished, failed, or were ended by `MovesEnded`.
        """
        ...

    @property
    def order(self) -> RegroupOrder | None:
        """The order that was followed last."""
        ...

    @property
    def raised(self) -> int:
        """Current epoch of this rank; 0 before it has joined."""
        ...

    def awaited(self) -> tuple[int, float] | None:
        """The peer that this rank waits for at the moment, and for how long [s]; None = for none. Any thread."""
        ...

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        """Start an epoch with these ranks as members; all of them have been notified. Any thread."""
        ...

    def follow(self, order: RegroupOrder) -> None:
        """Join, or compute with other members from the order's epoch on. Any thread.

        Raises: GroupError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Attached:
    """A compute that has its blocks.

    Args:
        layout: fingerprint of model, weights, dtype and block shape; handoffs and ranks must agree on it.
        pool_layout: key of the pool's blocks: the same, always including the weights' version.
        mirror: set when the arena is only the image of a device's memory.
        group: set if this is a rank that computes with its peers.
        grammars: compiled for its sequences; None = not supported.
    """

    executor: StepExecutor
    layout: str
    pool_layout: str
    mirror: ArenaMirror | None = None
    group: GroupMember | None = None
    grammars: Grammars | None = None


class InstanceCache(ContextCache, Protocol):
    """The KV-cache pool, as an instance holds it."""

    def facts(self) -> dict[str, Any]:
        """Implements `PoolContextCache.facts`."""
        ...

    def close(self) -> None:
        """Implements `PoolContextCache.close`."""
        ...


class Compute(Protocol):
    """One instance's means. Times that it gives or takes are those of `clock`."""

    @property
    def clock(self) -> Clock:
        """The instance's time."""
        ...

    @property
    def time_scale(self) -> float:
        """Seconds of `clock` in one real second."""
        ...

    @property
    def pulls_at_once(self) -> int:
        """Handoffs that may be pulled side by side."""
        ...

    @property
    def draft_tokens(self) -> int:
        """Tokens beyond the first that one decode step may give."""
        ...

    @property
    def speculation(self) -> bool:
        """Whether those are guesses that the engine keeps between steps, not the executor's own affair."""
        ...

    @property
    def forced_tokens(self) -> int:
        """Most guesses a step of those that a sequence's grammar forces."""
        ...

    @property
    def status_period_s(self) -> float | None:
        """Interval of load reports to gateways, in real time [s]; None = the default."""
        ...

    @property
    def npus(self) -> VirtualInstance:
        """The dies, with their memory booked."""
        ...

    @property
    def kv(self) -> KvBlocks:
        """The KV blocks that they hold."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output of the model [tokens]."""
        ...

    def attach(self, arena: memoryview) -> Attached:
        """Take the memory of all blocks: `kv.count * kv.real_bytes` writable bytes. Called once."""
        ...

    def on_moved(self, nbytes: int) -> None:
        """Count real bytes that a handoff brought."""
        ...

    def transport(self, moves: UbTransport) -> KvTransport:
        """The transport that the engine is given."""
        ...

    def cache(self, pool: PoolContextCache) -> InstanceCache:
        """The way into the KV-cache pool that the engine is given."""
        ...

    def record_step(self, tokens: int, elapsed_s: float) -> None:
        """Count a step on the NPUs."""
        ...

    def facts(self) -> dict[str, Any]:
        """Numbers of its own for status pages."""
        ...

    def stop(self) -> None:
        """Release all waiting threads."""
        ...

    def close(self) -> None:
        """Free its own memory, once no step runs any more."""
        ...


def blocks_in_ub(ub_bytes: int, block_bytes: int) -> int:
    """KV blocks that a pool's share of UB memory holds.

    Raises: ConfigError if they are fewer than two.
    """
    most = ub_bytes // block_bytes
    if most < 2:
        raise ConfigError(f"ub_memory_mib = {ub_bytes >> 20} holds {most} KV blocks of {block_bytes} bytes; raise it")
    return most
