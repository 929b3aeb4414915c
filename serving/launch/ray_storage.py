"""Persistent storage of Ray's control plane (its GCS): nodes, actors, Serve's targets.

    embedded    RocksDB in the session's folder: a restarted GCS recovers everything; no other service needed
    redis://…   a Redis that outlives this machine; for clusters whose head node may move
    memory      none: when the GCS dies, Ray dies with it a minute later

Does not import Ray.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serving.cluster.session import SystemSession
from serving.config.checks import check_gcs_storage

EMBEDDED, MEMORY = "embedded", "memory"


@dataclass(frozen=True, slots=True)
class RayStorage:
    """Storage settings for the start of Ray.

    Args:
        environment: for this process and its children; see `SystemSession.set_environment`.
        arguments: of `ray.init` (each with a leading underscore) and of a `Node`.
        survives: whether a restarted GCS recovers everything.
        folder: location of the storage, if on this machine.
    """

    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict, repr=False)
    survives: bool = True
    folder: Path | None = None

    def forget(self) -> None:
        """Delete the folder of a GCS that failed to start, if it has one."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def ray_storage(kind: str, session: SystemSession) -> RayStorage:
    """The storage for `[cluster] gcs_storage`.

    Args:
        kind: `embedded`, `memory` or `redis://[user:password@]host:port`, `rediss://` for TLS.
    Raises: ConfigError for any other value.
    """
    if kind == MEMORY:
        return RayStorage({}, survives=False)
    if kind == EMBEDDED:
        folder = session.folder / "gcs"
        return RayStorage({"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}, folder=folder)
    check_gcs_storage(kind)
    url = urlsplit(kind)
    scheme = "rediss://" if url.scheme == "rediss" else ""
    address = f"{scheme}{url.hostname}:{url.port or 6379}"
    named = {"redis_username": unquote(url.username or ""), "redis_password": unquote(url.password or "")}
    # Starts that share a Redis must not find each other's nodes.
    space = f"cloudmatrix-{session.name}"
    environment = {"RAY_REDIS_ADDRESS": address, "RAY_external_storage_namespace": space}
    return RayStorage(environment, {name: value for name, value in named.items() if value})
