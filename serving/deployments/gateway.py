"""The ingress replica: the HTTP surface over the live pools, served by uvicorn in this process or by Serve's proxy."""

import asyncio
import logging
import socket
import time
import uuid
from typing import Any

import ray
import uvicorn
from ray import serve
from ray.serve.handle import DeploymentHandle

from serving.api.app import create_app
from serving.api.settings import ApiSettings, ServedModel, hash_api_key
from serving.config.serve import ServeConfig
from serving.deployments.logs import log_beside_serve
from serving.deployments.membership import Member, membership, read_members
from serving.errors import ConfigError
from serving.ids import GatewayId
from serving.model.config import ModelConfig
from serving.runtime.live_backend import LiveBackend
from serving.runtime.status import cluster_status, instance_stats
from serving.telemetry.metrics import GatewayMetrics
from serving.version import VERSION

logger = logging.getLogger(__name__)

MEMBERS_PERIOD_S = 0.5
LISTEN_ATTEMPTS = 50
"""A replacement replica may have to wait for its predecessor's socket: 50 tries, 0.1 s apart."""


class GatewayDeployment:
    """One gateway as the ingress replica of the application.

    Args:
        pools: handles of the engine pools; bound so that they belong to the same application.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, secret: str, pools: dict[str, DeploymentHandle[Any]]
    ) -> None:
        log_beside_serve()
        self._config = config
        gateway = GatewayId(uuid.uuid4().hex[:12])
        self._served = _served_model(config)
        rank = serve.get_replica_context().rank.rank
        self._metrics = GatewayMetrics(
            model_name=self._served.names[0], engine=str(rank), max_model_len=self._served.max_model_len
        )
        self._backend = LiveBackend(gateway, secret, config, list(pools), self._metrics.observe_phases)
        self._members: list[Member] = []
        self._app = create_app(self._backend, self._served, _api_settings(config), self._metrics)
        self._app.add_api_route("/cluster", self._cluster, methods=["GET"], include_in_schema=False)
        self._tasks = [asyncio.create_task(self._follow_members())]
        if config.gateway.server == "uvicorn":
            self._tasks.append(asyncio.create_task(self._serve_http()))

    def __serve_build_asgi_app__(self) -> Any:
        """The ASGI app that Serve's own proxy reaches (`server = "serve"`)."""
        return self._app

    async def check_health(self) -> None:
        """Raises: RuntimeError when a task that must never end has ended; Serve then replaces the replica."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError(
                    f"{task.get_coro()} ended: {task.exception() if not task.cancelled() else 'cancelled'}"
                )

    async def __del__(self) -> None:
        if not hasattr(self, "_tasks"):
            return
        for task in self._tasks:
            task.cancel()
        self._backend.close()

    async def _follow_members(self) -> None:
        actor: Any = None
        while True:
            try:
                actor = actor or membership()
                self._members = await read_members(actor)
                self._backend.links.update(self._members)
                for member in self._members:
                    self._metrics.publish_instance(instance_stats(member))
                self._metrics.retain_instances([member.replica for member in self._members])
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                logger.warning("membership does not answer (%s); keeping the links", type(error).__name__)
                actor = None
            self._backend.links.check_silence()
            await asyncio.sleep(MEMBERS_PERIOD_S)

    async def _serve_http(self) -> None:
        gateway = self._config.gateway
        sock = await _listen(gateway.host, gateway.port)
        server = uvicorn.Server(
            uvicorn.Config(
                self._app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=5, lifespan="off"
            )
        )
        await server.serve(sockets=[sock])  # not the main thread: uvicorn leaves the signals to Ray

    async def _cluster(self) -> dict[str, Any]:
        """What `cloudmatrix status` prints: pools, replicas, NPUs, memory, queues."""
        return cluster_status(self._config, self._members, self._backend.counts())


async def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(LISTEN_ATTEMPTS):
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            logger.warning("cannot listen on %s:%d (%s), attempt %d", host, port, error.strerror, attempt + 1)
            await asyncio.sleep(0.1)
            continue
        sock.setblocking(False)
        return sock
    raise ConfigError(f"port {port} on {host} stays in use; stop what listens there")


def _served_model(config: ServeConfig) -> ServedModel:
    folder = config.model.path
    model_len = config.engine.max_model_len or ModelConfig.from_folder(folder).max_position_embeddings
    return ServedModel.from_folder(
        folder, names=(config.model.name or folder.name,), max_model_len=model_len, created=int(time.time())
    )


def _api_settings(config: ServeConfig) -> ApiSettings:
    gateway = config.gateway
    return ApiSettings(
        version=VERSION,
        api_key_hashes=tuple(hash_api_key(key) for key in gateway.api_keys),
        max_body_bytes=gateway.max_body_bytes,
        request_timeout_s=gateway.request_timeout_s,
    )
