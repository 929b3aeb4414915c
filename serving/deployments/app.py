"""The Serve application: which deployments there are, what each replica takes from Ray, how they are bound together."""

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from hardware.ray_resources import replica_resources
from serving.config.serve import ServeConfig
from serving.deployments.gateway import GatewayDeployment
from serving.deployments.instance import InstanceDeployment
from serving.deployments.kvcache import LEAVE_S, KvCacheDeployment

APP_NAME = "cloudmatrix"
GATEWAY = "gateway"
KVCACHE = "kvcache"

HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 5.0
MANY_REQUESTS = 100_000
"""Serve must not queue or refuse: admission is the gateway's and the engines' business."""


def build(
    config: ServeConfig, *, secret: str, session: str, threads: int, pool_salt: bytes, pool_folder: Path
) -> Application:
    """The application of one configuration.

    Args:
        secret: shared by gateways, instances and memory servers; any unguessable text.
        session: names this start of the system.
        threads: compute threads per instance.
        pool_salt: from which namespaces get their salts; told to gateways only.
        pool_folder: where memory servers keep their names, and their SSD tier if it has no folder of its own.
    """
    instance: Any = serve.deployment(InstanceDeployment)
    pools = {
        pool: instance.options(
            name=pool,
            num_replicas=section.replicas,
            ray_actor_options={
                "num_cpus": 0,
                "resources": replica_resources(section.npus_per_instance, section.ub_memory_mib),
            },
            graceful_shutdown_timeout_s=config.gateway.request_timeout_s,
            **_common(),
        ).bind(config, pool, secret, session, threads)
        for pool, section in config.pools.items()
    }
    ingress: Any = serve.deployment(serve.ingress()(GatewayDeployment))
    gateway = ingress.options(
        name=GATEWAY,
        num_replicas=config.gateway.replicas,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=config.gateway.request_timeout_s,
        **_common(),
    )
    bound: tuple[Any, ...] = ()
    if config.kvcache.replicas:
        bound = (_kvcache(config, secret, session, pool_folder),)
    app: Application = gateway.bind(config, secret, pools, pool_salt, *bound)
    return app


def _kvcache(config: ServeConfig, secret: str, session: str, folder: Path) -> Application:
    section = config.kvcache
    server: Any = serve.deployment(KvCacheDeployment)
    app: Application = server.options(
        name=KVCACHE,
        num_replicas=section.replicas,
        ray_actor_options={"num_cpus": 0, "resources": replica_resources(0, section.ub_memory_mib)},
        graceful_shutdown_timeout_s=section.drain_s + LEAVE_S,
        **_common(),
    ).bind(config, secret, session, folder)
    return app


def _common() -> dict[str, Any]:
    return {
        "max_ongoing_requests": MANY_REQUESTS,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
    }
