"""One pool of equal instances: their number, their size, and the limits of one step."""

from dataclasses import dataclass

from serving.config.cluster import DIES_PER_NPU
from serving.config.key import key
from serving.config.upgrade_rules import GATEWAY, OWN_POOL, SERVE, in_place, restarts, upgrades


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`[prefill]`, `[decode]` or `[aggregated]`. A replica is one instance; an instance owns whole NPUs of one node.

    With `ep` above 1 a replica is a group of that many ranks, each a separate instance for gateways; all other keys
    then apply to one rank.
    """

    UPGRADE = upgrades(
        restarts(OWN_POOL),
        (restarts(GATEWAY, OWN_POOL), "npus_per_instance ep"),
        (in_place(SERVE), "replicas"),
    )

    replicas: int = key(
        "instances at the start; 0 where an autoscaler starts the pool on demand and its minimum is 0",
        default=1,
        low=0,
        high=384,
    )
    npus_per_instance: int = key("NPUs of one instance (two dies each), or of each of its ranks", default=2, low=1)
    ub_memory_mib: int = key(
        "most of its node's UB memory that one instance takes for KV blocks [MiB]; also bounded by its HBM",
        default=256,
        low=1,
    )
    max_step_tokens: int = key("tokens per step: prompt chunks plus one per running sequence", default=512, low=1)
    max_sequences: int = key("sequences running at once in one instance", default=64, low=1)
    max_waiting: int = key(
        "sequences waiting in one instance; when it is full, other instances are tried", default=256, low=1
    )
    ep: int = key(
        "ranks of one instance, each a process with its own NPUs, UB memory, KV blocks and sequences, all on one "
        "node; above 1 every other key of this section except `replicas` applies to one rank",
        default=1,
        low=1,
        high=64,
    )

    @property
    def dies_per_instance(self) -> int:
        """Dies of one instance; with `ep` above 1, of one rank."""
        return self.npus_per_instance * DIES_PER_NPU

    @property
    def npus_per_replica(self) -> int:
        """NPUs of one replica with all its ranks."""
        return self.ep * self.npus_per_instance

    @property
    def ub_memory_per_replica_mib(self) -> int:
        """UB memory of one replica with all its ranks [MiB]."""
        return self.ep * self.ub_memory_mib
