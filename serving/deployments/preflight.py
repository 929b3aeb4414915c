"""What can be wrong before anything was started. Imports no Ray, so that a mistake costs a moment and one line."""

import os
from pathlib import Path

from hardware.cost.device_file import load_device
from hardware.units import MIB
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.deployments.ports import GATEWAY_PORT, require_free
from serving.errors import ConfigError, ModelError, PoolError
from serving.model.config import ModelConfig
from serving.runtime.accounted import accounted_kv
from serving.runtime.npu_of import npu_of


def preflight(config: ServeConfig) -> None:
    """Find mistakes while nothing runs yet.

    Raises: SpecError (the simulated device or the model's shape cannot be read), ConfigError (a port is taken, a block
        is larger than a memory server, the folder of the SSD tier cannot be written, the Redis does not answer),
        ModelError (the model folder cannot be served).
    Effects: makes the folder of the SSD tier.
    """
    model = ModelConfig.from_folder(config.model.path)
    accounted = accounted_kv(config)
    if accounted is not None:
        npu_of(load_device(config.simulation.device))
    elif not any(config.model.path.glob("*.safetensors")):
        raise ModelError(f"{config.model.path} has no *.safetensors: give the folder of a Hugging Face checkpoint")
    require_free(config.gateway.host, config.gateway.port, GATEWAY_PORT)
    if config.cluster.dashboard_port:
        require_free(config.cluster.dashboard_host, config.cluster.dashboard_port, "[cluster] dashboard_port (0 = any)")
    if config.cluster.gcs_storage.startswith("redis"):
        _require_redis(config.cluster.gcs_storage, "ray")
    if config.kvcache.replicas:
        _require_room(config, _block_bytes(config, model) if accounted is None else accounted.block_bytes)
        _require_folder(config.kvcache)
        _require_directory(config.kvcache)


def _block_bytes(config: ServeConfig, model: ModelConfig) -> int:
    itemsize = 2 if config.model.dtype == "bfloat16" else 4
    return model.num_hidden_layers * config.engine.block_tokens * model.latent_dim * itemsize


def _require_room(config: ServeConfig, block: int) -> None:
    if block > config.kvcache.ub_memory_mib * MIB:
        raise ConfigError(
            f"one KV block of this model takes {block} bytes, more than a memory server of"
            f" {config.kvcache.ub_memory_mib} MiB: raise [kvcache] ub_memory_mib or lower [engine] block_tokens"
        )


def _require_folder(kvcache: KvCacheConfig) -> None:
    if not kvcache.ssd_path:
        return
    folder = Path(kvcache.ssd_path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): change [kvcache] ssd_path") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: make it writable, or change [kvcache] ssd_path")


def _require_directory(kvcache: KvCacheConfig) -> None:
    if kvcache.directory != "embedded":
        _require_redis(kvcache.directory, "preflight")


def _require_redis(url: str, purpose: str) -> None:
    from serving.kvpool.redis_store import RedisStore  # only who uses a Redis pays for its import

    with RedisStore(url, purpose) as store:
        try:
            store.ping()
        except PoolError as error:
            raise ConfigError(f"{error}: start it, or correct the address") from error
