"""Compute of an instance: real tensors, or predicted time. The rest of the instance is the same for both.

make_compute ──► memory of the dies booked ──► arena of blocks ──► attach ──► executor
                                                              └──► transport, cache: unchanged, or timed
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hardware.clock import Clock
from hardware.device.instance import VirtualInstance
from serving.config.cluster import PortRange
from serving.errors import ConfigError
from serving.grammar.compile import Grammars
from serving.instance.core.ports import ContextCache, KvTransport, StepExecutor
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import ArenaMirror, PoolContextCache
from serving.sockets.secrets import ClusterSecrets
from serving.values.expert_map import ExpertOrder, RankEvent, SessionTimes
from serving.values.group import RankOffer, RegroupOrder
from serving.values.layer_split import LayerSplit


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The KV blocks of one instance.

    Args:
        real_bytes: size of one block in the UB segment.
        block_bytes: size of one block in HBM; equal unless KV is only accounted.
        split: distribution of the model's layers over blocks; None = each block has all.
    """

    count: int
    real_bytes: int
    block_bytes: int
    split: LayerSplit | None = None

    @property
    def width(self) -> int:
        """Number of blocks for the same positions, which together have all layers."""
        return 1 if self.split is None else self.split.width


class GroupMember(Protocol):
    """A rank's place in its group."""

    def listen(self, host: str, secrets: ClusterSecrets, ports: PortRange) -> None:
        """Accept connections of ranks of other nodes; before the first `offer`.

        Raises: OSError if the host cannot be bound; ConfigError under TLS, or if the range has no free port.
        """
        ...

    def offer(self, layout: str) -> RankOffer:
        """Facts that this rank's peers and its shell need. Any thread.

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
        """Version of the map that it uses; 0 before it has joined. Any thread."""
        ...

    def carry_out(self, orders: Sequence[ExpertOrder], answered: Callable[[tuple[RankEvent, ...]], None]) -> None:
        """Execute a shell's commands for moving experts on this rank. Any thread.

        Args:
            answered: called once, from any thread, when all have finished, failed, or were ended by `MovesEnded`.
        """
        ...

    @property
    def order(self) -> RegroupOrder | None:
        """The last order that was followed."""
        ...

    @property
    def raised(self) -> int:
        """Current epoch of this rank; 0 before it has joined."""
        ...

    def awaited(self) -> tuple[int, float] | None:
        """The peer that this rank is waiting for, and for how long [s]; None = for none. Any thread."""
        ...

    def sessions(self) -> SessionTimes:
        """Times of its sessions since it joined. Any thread."""
        ...

    @property
    def unreachable(self) -> tuple[int, ...]:
        """Members of other nodes whose connections have ended, or never began in time. Any thread."""
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
    """A compute with its blocks.

    Args:
        layout: fingerprint of model, weights, dtype and block shape; must be equal for handoffs and among ranks.
        pool_layout: key of the pool's blocks: the same, always with the weights' version.
        mirror: set if the arena only mirrors a device's memory.
        group: set if this is a rank that computes with its peers.
        grammars: compiled grammars of its sequences; None = not supported.
    """

    executor: StepExecutor
    layout: str
    pool_layout: str
    mirror: ArenaMirror | None = None
    group: GroupMember | None = None
    grammars: Grammars | None = None


class InstanceCache(ContextCache, Protocol):
    """The KV-cache pool as used by an instance."""

    def facts(self) -> dict[str, Any]:
        """Numbers for status pages, see `PoolContextCache.facts`."""
        ...

    def close(self) -> None:
        """End the connections, see `PoolContextCache.close`."""
        ...


class Compute(Protocol):
    """The executor, memory and clock of one instance. All its times are those of `clock`."""

    @property
    def clock(self) -> Clock:
        """The instance's time."""
        ...

    @property
    def time_scale(self) -> float:
        """Seconds of `clock` per real second."""
        ...

    @property
    def pulls_at_once(self) -> int:
        """Maximum number of concurrent handoff pulls."""
        ...

    @property
    def draft_tokens(self) -> int:
        """Tokens beyond the first that one decode step may give."""
        ...

    @property
    def speculation(self) -> bool:
        """Whether they are draft tokens that the engine keeps between steps, instead of the executor internally."""
        ...

    @property
    def forced_tokens(self) -> int:
        """Maximum number of grammar-forced draft tokens per step."""
        ...

    @property
    def lookup_tokens(self) -> int:
        """Maximum number of draft tokens per step that are looked up in a sequence's own text."""
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
        """The KV blocks of the dies."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output of the model [tokens]."""
        ...

    def attach(self, arena: memoryview) -> Attached:
        """Use this memory for all blocks: `kv.count * kv.real_bytes` writable bytes. Called once."""
        ...

    def on_moved(self, nbytes: int) -> None:
        """Count the real bytes moved by a handoff."""
        ...

    def transport(self, moves: UbTransport) -> KvTransport:
        """The transport for the engine."""
        ...

    def cache(self, pool: PoolContextCache) -> InstanceCache:
        """The KV-cache pool's port for the engine."""
        ...

    def record_step(self, tokens: int, elapsed_s: float) -> None:
        """Count a step on the NPUs."""
        ...

    def facts(self) -> dict[str, Any]:
        """Additional numbers for status pages."""
        ...

    def stop(self) -> None:
        """Release all waiting threads."""
        ...

    def close(self) -> None:
        """Free its memory; no step may run any more."""
        ...


def blocks_in_ub(ub_bytes: int, block_bytes: int) -> int:
    """Number of KV blocks in a pool's share of UB memory.

    Raises: ConfigError if there are fewer than two.
    """
    most = ub_bytes // block_bytes
    if most < 2:
        raise ConfigError(f"ub_memory_mib = {ub_bytes >> 20} holds {most} KV blocks of {block_bytes} bytes; raise it")
    return most
