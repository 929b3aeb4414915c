"""What is found out about the KV-cache pool before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.config import EngineConfig, GatewayConfig, KvCacheConfig, ModelConfig, ServeConfig
from serving.config.cluster import ClusterConfig
from serving.deployments.preflight import preflight
from serving.errors import ConfigError
from tests.e2e.server import free_port
from tests.kvpool.redis_process import RedisProcess, needs_redis
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    return ServeConfig(
        ModelConfig(path=write_random_checkpoint(tmp_path / "model")),
        gateway=GatewayConfig(port=free_port()),
        cluster=ClusterConfig(dashboard_port=0),
        kvcache=KvCacheConfig(replicas=1, ssd_mib=1, ssd_path=str(tmp_path / "deep" / "ssd")),
    )


def test_the_disk_folder_is_made(config: ServeConfig) -> None:
    preflight(config)
    assert Path(config.kvcache.ssd_path).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be(config: ServeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = replace(config, kvcache=replace(config.kvcache, ssd_path=str(tmp_path / "file" / "ssd")))
    with pytest.raises(ConfigError, match=r"cannot be made \(Not a directory\): change \[kvcache\] ssd_path"):
        preflight(wrong)


def test_a_block_larger_than_a_server(config: ServeConfig) -> None:
    wrong = replace(config, engine=EngineConfig(block_tokens=4096), kvcache=KvCacheConfig(replicas=1, ub_memory_mib=1))
    with pytest.raises(
        ConfigError, match=r"one KV block of this model takes \d+ bytes, more than a memory server of 1"
    ):
        preflight(wrong)


def test_a_redis_that_is_not_there(config: ServeConfig) -> None:
    wrong = replace(config, kvcache=KvCacheConfig(replicas=1, directory=f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(ConfigError, match=r"cannot be reached .* start it, or correct the address"):
        preflight(wrong)
    preflight(replace(wrong, kvcache=replace(wrong.kvcache, replicas=0)))  # nobody would use it


def test_a_redis_for_ray_that_is_not_there(config: ServeConfig) -> None:
    storage = f"redis://127.0.0.1:{free_port()}"
    wrong = replace(config, cluster=replace(config.cluster, gcs_storage=storage))
    with pytest.raises(ConfigError, match=r"cannot be reached .* start it, or correct the address"):
        preflight(wrong)


@needs_redis
def test_a_redis_that_is_there(config: ServeConfig, tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    try:
        server.start()
        preflight(replace(config, kvcache=KvCacheConfig(replicas=1, directory=server.url)))
    finally:
        server.end()
