"""The KV-cache pool: its memory servers, their tiers, and the tenants' quotas."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import ENGINES, GATEWAY, KVCACHE, POOL_CONTROL, SERVE, in_place, restarts, upgrades

Eviction = Literal["lru", "lfu", "fifo", "cost"]
Scope = Literal["pool", "node"]
StoreDecoded = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """`[kvcache]`. A replica is one memory server: one UB segment of real shared memory, one directory on disk."""

    UPGRADE = upgrades(
        restarts(KVCACHE),
        (restarts(*ENGINES), "get_timeout_s put_timeout_s max_store_share store_decoded models"),
        (restarts(*ENGINES, KVCACHE), "ssd_path scope"),
        (restarts(GATEWAY), "directory salt"),
        (restarts(GATEWAY, KVCACHE), "ssd_mib prefetch_share"),
        (in_place(SERVE), "replicas"),
        (in_place(POOL_CONTROL), "ramp_s"),
        (in_place(KVCACHE), "drain_s"),
    )
    LIVE_ONLY = "ssd_path write_lease_s put_timeout_s models scope directory salt"

    replicas: int = key("memory servers; 0 = no pool", default=0, low=0, high=384)
    ub_memory_mib: int = key("UB segment of one memory server [MiB]", default=256, low=1)
    ssd_mib: int = key("disk capacity of one memory server, its SSD tier [MiB]; 0 = none", default=0, low=0)
    ssd_path: str = key(
        "folder of the SSD tier, one subfolder per server; empty = a temporary one, removed at the end", default=""
    )
    write_through: bool = key("write every block to SSD at once; otherwise only when it leaves memory", default=False)
    eviction: Eviction = key(
        "which blocks are evicted first; `cost` weighs size against the cost of recomputing", default="lru"
    )
    prefetch_share: float = key(
        "blocks on their way from SSD to memory because a request that needs them waits at a gateway, as a share of "
        "memory; 0 = no prefetch",
        default=0.1,
        low=0.0,
        high=0.5,
    )
    high_water: float = key("memory use at which blocks start to move to SSD", default=0.95, low=0.05, high=1.0)
    low_water: float = key("memory use at which they stop moving", default=0.85, low=0.0, high=1.0)
    slab_kib: int = key("granularity in which memory is reassigned between block sizes [KiB]", default=2048, low=64)
    lease_s: float = key(
        "how long a block is protected from eviction after a lookup found it [s]", default=5.0, low=0.1, high=600
    )
    write_lease_s: float = key("how long a write may take before it is dropped [s]", default=10.0, low=0.1)
    get_timeout_s: float = key(
        "longest time of a lookup with its reads [s]; then it counts as a miss", default=1.0, low=0.01
    )
    put_timeout_s: float = key("longest time to publish a batch [s]; then it is dropped", default=5.0, low=0.01)
    max_store_share: float = key(
        "share of an instance's KV blocks that may wait to be published; further ones are dropped",
        default=0.25,
        low=0.0,
        high=0.9,
    )
    store_decoded: StoreDecoded = key(
        "publish blocks with generated tokens; `auto` = unless `[model] reasoning`", default="auto"
    )
    models: bool = key("keep weights in the pool, so that replicas on a node share one copy", default=True)
    scope: Scope = key(
        "`pool` = every server serves every instance; `node` = only instances on its own node (the baseline)",
        default="pool",
    )
    ramp_s: float = key(
        "time over which a new server's share of new blocks rises to its full value [s]", default=30.0, low=0.0
    )
    drain_s: float = key(
        "how long a leaving server may take to migrate its blocks to the others [s]", default=20.0, low=0.0, high=3600
    )
    retain_share: float = key(
        "share of a memory server's memory that a tenant's sessions may claim; "
        "claimed blocks leave it after all others of the tenant",
        default=0.5,
        low=0.0,
        high=1.0,
    )
    pin_share: float = key(
        "share of a memory server's memory that sessions may pin: no request gets that room",
        default=0.0,
        low=0.0,
        high=0.9,
    )
    max_ttl_s: float = key(
        "longest time from a claim to its end, however often it is renewed [s]", default=3600.0, low=0.0
    )
    demote_after_s: float = key(
        "blocks of a session that pauses longer than this wait on SSD [s]", default=20.0, low=0.0
    )
    sessions: int = key(
        "sessions of a namespace whose claims a memory server keeps; the oldest is forgotten", default=10_000, low=1
    )
    branches: int = key(
        "branches of a session whose claims are kept; the oldest is forgotten", default=16, low=1, high=1024
    )
    directory: str = key(
        "where the hash ring, namespaces and quotas are stored: `embedded`, or a `redis://` address",
        default="embedded",
        low=1,
        secret=True,
    )
    salt: str = key(
        "secret from which the namespaces' salts are derived; empty = random, so the next start cannot use an "
        "existing SSD folder",
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

    UPGRADE = upgrades(in_place(GATEWAY, POOL_CONTROL))
    LIVE_ONLY = "*"

    name: str = key("name in metrics and on the command line", low=1)
    api_keys: tuple[str, ...] = key(
        "API keys of this tenant, accepted like `[gateway] api_keys`", default=(), secret=True
    )
    quota_mib: int = key(
        "most that the tenant may hold in the pool, memory and SSD together [MiB]; 0 = no limit", default=0, low=0
    )
    weight: float = key(
        "weight of each of its keys in fair queueing: twice the weight, twice the share",
        default=1.0,
        low=0.01,
        high=100,
    )
    retain_mib: int = key(
        "most that the tenant's sessions may claim in the pool's memory [MiB]; 0 = as `[kvcache] retain_share` allows",
        default=0,
        low=0,
    )
    pin_mib: int = key("most that they may pin there [MiB]; 0 = as `[kvcache] pin_share` allows", default=0, low=0)
    max_ttl_s: float = key(
        "longest time from a claim of the tenant to its end [s]; 0 = `[kvcache] max_ttl_s`", default=0.0, low=0.0
    )
