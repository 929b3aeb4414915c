"""Arguments of Ray for the storage of its control plane's state."""

from pathlib import Path

import pytest

from serving.cluster.session import SystemSession
from serving.errors import ConfigError
from serving.launch.local_cluster import ray_storage

SESSION = SystemSession("abc123", Path("/somewhere/cloudmatrix-abc123"), "token")


def test_embedded_lies_in_the_sessions_folder() -> None:
    storage = ray_storage("embedded", SESSION)
    assert storage.environment == {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": "/somewhere/cloudmatrix-abc123/gcs",
    }
    assert storage.survives
    assert storage.arguments == {}


def test_memory_survives_nothing() -> None:
    storage = ray_storage("memory", SESSION)
    assert (storage.environment, storage.survives) == ({}, False)


def test_redis_with_and_without_a_password() -> None:
    storage = ray_storage("redis://10.0.0.1:7000", SESSION)
    assert storage.environment == {
        "RAY_REDIS_ADDRESS": "10.0.0.1:7000",
        "RAY_external_storage_namespace": "cloudmatrix-abc123",
    }
    assert storage.arguments == {}
    storage = ray_storage("rediss://me:p%40ss@redis", SESSION)
    assert storage.environment["RAY_REDIS_ADDRESS"] == "rediss://redis:6379"
    assert storage.arguments == {"redis_username": "me", "redis_password": "p@ss"}
    assert "p@ss" not in repr(storage)
    assert storage.survives


@pytest.mark.parametrize(
    "kind", ["", "disk", "redis://", "redis://me@", "redis://host:http", "unix:///socket", "redis://host/1"]
)
def test_anything_else_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="gcs_storage must be"):
        ray_storage(kind, SESSION)
