"""One pool of equal instances: how many, how large, and what one step of theirs may hold."""

from dataclasses import dataclass

from serving.config.cluster import DIES_PER_NPU
from serving.config.key import key


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`[prefill]`, `[decode]` or `[aggregated]`. A replica is one instance; an instance owns whole NPUs of one node."""

    replicas: int = key(
        "instances at the start; 0 where an autoscaler wakes the pool and its least is 0", default=1, low=0, high=384
    )
    npus_per_instance: int = key("NPUs of one instance (two dies each)", default=2, low=1)
    ub_memory_mib: int = key(
        "most that one instance takes of its node's UB memory for KV blocks [MiB]; its HBM bounds them too",
        default=256,
        low=1,
    )
    max_step_tokens: int = key("tokens of one step: prompt chunks plus one per running sequence", default=512, low=1)
    max_sequences: int = key("sequences running at once in one instance", default=64, low=1)
    max_waiting: int = key("sequences waiting in one instance; beyond it others are tried", default=256, low=1)

    @property
    def dies_per_instance(self) -> int:
        """Dies, hence ranks, of one instance."""
        return self.npus_per_instance * DIES_PER_NPU
