"""The whole configuration, made of sections. A component receives its section, never the root."""

import math
from dataclasses import dataclass, field

from serving.config.batches import BatchesConfig
from serving.config.cluster import ClusterConfig, HardwareConfig
from serving.config.engine import EngineConfig, PoolConfig, ServingConfig
from serving.config.experts import ExpertsConfig
from serving.config.gateway import GatewayConfig
from serving.config.health import ChaosConfig, HealthConfig
from serving.config.kv_events import KvEventsConfig
from serving.config.kvcache import KvCacheConfig, NamespaceConfig
from serving.config.model import ModelConfig
from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.config.simulation import SimulationConfig
from serving.values.pool_kinds import kinds_of


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """One TOML file after reading. A section missing from the file has the value given here."""

    model: ModelConfig
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    serving: ServingConfig = field(default_factory=ServingConfig)
    prefill: PoolConfig = field(default_factory=lambda: PoolConfig(max_sequences=16))
    decode: PoolConfig = field(default_factory=lambda: PoolConfig(npus_per_instance=4, ub_memory_mib=512))
    aggregated: PoolConfig = field(default_factory=lambda: PoolConfig(npus_per_instance=4, ub_memory_mib=512))
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    kvcache: KvCacheConfig = field(default_factory=KvCacheConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    autoscaler: AutoscalerConfig = field(default_factory=AutoscalerConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    namespaces: tuple[NamespaceConfig, ...] = ()
    """`[[namespaces]]`"""

    @property
    def pools(self) -> dict[str, PoolConfig]:
        """The engine pools that the mode starts, by deployment name."""
        return {kind.name: getattr(self, kind.name) for kind in kinds_of(self.serving.mode)}

    @property
    def one_pool(self) -> bool:
        """Whether one pool prefills and decodes, without handoffs."""
        return len(kinds_of(self.serving.mode)) == 1

    @property
    def instances(self) -> int:
        """Instances of all pools that the mode starts; a group counts as its ranks."""
        return sum(pool.replicas * sum(pool.sides) for pool in self.pools.values())

    @property
    def time_scale(self) -> float:
        """Seconds of the instances' time per real second; 1 unless their devices are simulated."""
        return self.simulation.time_scale if self.engine.executor == "simulated" else 1.0

    @property
    def api_keys_required(self) -> bool:
        """Whether requests need an API key: true if a key of any kind is configured."""
        tenants = any(namespace.api_keys for namespace in self.namespaces)
        return tenants or bool(self.gateway.api_keys or self.gateway.admin_keys or self.gateway.api_key_file)

    def threads_per_instance(self, cores: int, share: float = 1.0) -> int:
        """Compute threads of one instance, or of one rank of a group.

        Args:
            cores: cores that the instances of a machine share.
            share: this machine's part of the cluster's NPUs; it is expected to run the same part of the instances.
        Returns: `[engine] threads`, or an even share of the cores less one; at least 1. The one core is left for the
            gateway and Ray: compute threads that wait for each other lose more by sharing a core than they gain.
        """
        return self.engine.threads or max(1, (cores - 1) // max(1, math.ceil(self.instances * share - 1e-9)))
