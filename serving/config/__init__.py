"""Configuration: one TOML file, read once at the edge into frozen dataclasses; no environment variables.

Every key is documented where it is declared; `python -m serving.config` prints them all as one table.
"""

from serving.config.checks import check_model_folder
from serving.config.cluster import ClusterConfig, HardwareConfig, NodeConfig
from serving.config.engine import EngineConfig, PoolConfig, ServingConfig, ServingMode
from serving.config.gateway import GatewayConfig, HttpServer
from serving.config.kvcache import KvCacheConfig, NamespaceConfig
from serving.config.load import load_config, with_overrides
from serving.config.model import Device, DType, ModelConfig
from serving.config.serve import ServeConfig

__all__ = [
    "ClusterConfig",
    "DType",
    "Device",
    "EngineConfig",
    "GatewayConfig",
    "HardwareConfig",
    "HttpServer",
    "KvCacheConfig",
    "ModelConfig",
    "NamespaceConfig",
    "NodeConfig",
    "PoolConfig",
    "ServeConfig",
    "ServingConfig",
    "ServingMode",
    "check_model_folder",
    "load_config",
    "with_overrides",
]
