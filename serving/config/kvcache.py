"""The KV-cache pool: its memory servers, their tiers, and the tenants' quotas."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

Eviction = Literal["lru", "lfu", "fifo", "cost"]
Scope = Literal["pool", "node"]
StoreDecoded = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """`[kvcache]`. A replica is one memory server: one UB segment of real shared memory, one directory on disk."""

    replicas: int = key("memory servers; 0 = no pool", default=0, low=0, high=384)
    ub_memory_mib: int = key("UB segment of one memory server [MiB]", default=256, low=1)
    ssd_mib: int = key("room on disk of one memory server, its SSD tier [MiB]; 0 = none", default=0, low=0)
    ssd_path: str = key(
        "folder of the SSD tier, one subfolder per server; empty = this start's own, removed at the end", default=""
    )
    write_through: bool = key("write every block to SSD at once; else only when it leaves memory", default=False)
    eviction: Eviction = key("which blocks leave first; `cost` weighs size and cost to recompute", default="lru")
    high_water: float = key("fill of memory at which blocks begin to leave for SSD", default=0.95, low=0.05, high=1.0)
    low_water: float = key("fill at which they stop leaving", default=0.85, low=0.0, high=1.0)
    slab_kib: int = key("memory moves between block sizes in pieces of this size [KiB]", default=2048, low=64)
    lease_s: float = key("how long a found block cannot be evicted [s]", default=5.0, low=0.1, high=600)
    write_lease_s: float = key("how long a writer may take before what it writes is dropped [s]", default=10.0, low=0.1)
    get_timeout_s: float = key(
        "a lookup with its reads takes at most this long, else it is a miss [s]", default=1.0, low=0.01
    )
    put_timeout_s: float = key(
        "publishing one batch takes at most this long, else it is dropped [s]", default=5.0, low=0.01
    )
    max_store_share: float = key(
        "share of an instance's KV blocks that may wait to be published; beyond it they are dropped",
        default=0.25,
        low=0.0,
        high=0.9,
    )
    store_decoded: StoreDecoded = key(
        "publish blocks with generated tokens; `auto` = unless `[model] reasoning`", default="auto"
    )
    models: bool = key("keep weights in the pool, so that replicas of a node share one copy", default=True)
    scope: Scope = key(
        "`pool` = every server serves every instance; `node` = only those of its own node (the baseline)",
        default="pool",
    )
    ramp_s: float = key("how long a new server takes to reach its full share of new blocks [s]", default=30.0, low=0.0)
    drain_s: float = key(
        "how long a leaving server may take to hand its blocks to the others [s]", default=20.0, low=0.0, high=3600
    )
    directory: str = key(
        "where ring, namespaces and quotas are kept: `embedded`, or a `redis://` address",
        default="embedded",
        low=1,
        secret=True,
    )
    salt: str = key(
        "secret that gives namespaces their salts; empty = random, and the next start cannot use a kept SSD folder",
        default="",
        secret=True,
    )

    def stores_decoded(self, *, reasoning: bool) -> bool:
        """Whether blocks with generated tokens are published.

        A reasoning model's reasoning is omitted from the next prompt, so its response is at another position and its
        blocks match no prefix.

        Args:
            reasoning: the model's setting.
        """
        return self.store_decoded == "always" or (self.store_decoded == "auto" and not reasoning)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """`[[namespaces]]`: one tenant, identified by its API keys. Other keys, and open servers, use namespace
    `default`."""

    name: str = key("what to call it, in metrics and on the command line", low=1)
    api_keys: tuple[str, ...] = key("keys of this tenant, accepted like `[gateway] api_keys`", default=(), secret=True)
    quota_mib: int = key(
        "most that it may hold in the pool, memory and SSD together [MiB]; 0 = no limit", default=0, low=0
    )
    weight: float = key(
        "of each of its keys where requests wait for their turn: twice the weight, twice the share",
        default=1.0,
        low=0.01,
        high=100,
    )
