"""The Serve application: its deployments, the resources of each replica, and the bindings between them."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ray import serve
from ray.serve import Application

from hardware.ray_resources import replica_resources
from serving.cluster.nodes import ON_HEAD_NODE
from serving.config.serve import ServeConfig
from serving.config.upgrade_rules import AUTOSCALER, GATEWAY, KVCACHE
from serving.gateway.live.replica import LEAVE_S as GATEWAY_LEAVE_S
from serving.gateway.live.replica import GatewayDeployment
from serving.group.live.shell_replica import ShellDeployment
from serving.instance.live.replica import InstanceDeployment
from serving.kvpool.live.replica import LEAVE_S, KvCacheDeployment
from serving.launch.rollout import Order
from serving.scaling.live.autoscaler_replica import AutoscalerDeployment

APP_NAME = "cloudmatrix"

LEAST_CPUS = 0.001
MANY_REQUESTS = 100_000
"""Serve must not queue or refuse: the gateway and the engines do admission."""


def build(
    config: ServeConfig,
    *,
    secret: str,
    session: str,
    pool_salt: bytes,
    pool_folder: Path,
    dashboard_url: str,
    orders: Mapping[str, Order] = MappingProxyType({}),
) -> Application:
    """The application of one configuration.

    Args:
        secret: shared by gateways, instances and memory servers; any unguessable text.
        session: name of this start of the system.
        pool_salt: source of the namespaces' salts; given to gateways only.
        pool_folder: folder of the memory servers' names, and of their SSD tier if it has no folder of its own.
        dashboard_url: of Ray's dashboard, for links.
        orders: target state of each deployment; by default that of the configuration.
    """
    pools = {pool: _ordered(_instances(config, pool), orders.get(pool)) for pool in config.pools}
    for pool, section in config.pools.items():
        if not (orders[pool].replicas if pool in orders else section.replicas):
            _start_empty(pools[pool])
    handles = {pool: deployment.bind(config, pool, secret, session) for pool, deployment in pools.items()}
    ingress: Any = serve.deployment(serve.ingress()(GatewayDeployment))
    gateway = ingress.options(
        name=GATEWAY,
        num_replicas=config.gateway.replicas,
        ray_actor_options=_gateway_place(config),
        graceful_shutdown_timeout_s=config.gateway.request_timeout_s + GATEWAY_LEAVE_S,
        **_common(config),
    )
    bound: dict[str, Application] = {}
    if config.kvcache.replicas:
        server = _ordered(_kvcache(config), orders.get(KVCACHE))
        bound[KVCACHE] = server.bind(config, secret, session, pool_folder)
    if config.autoscaler.policy != "none":
        bound[AUTOSCALER] = _ordered(_autoscaler(config), orders.get(AUTOSCALER)).bind(config)
    app: Application = _ordered(gateway, orders.get(GATEWAY)).bind(
        config, secret, handles, pool_salt, int(time.time()), dashboard_url=dashboard_url, **bound
    )
    return app


def _gateway_place(config: ServeConfig) -> dict[str, Any]:
    """Ray's placement options for gateways: a single gateway on the head node, several on different nodes, because
    client streams end on them.

    Ray spreads only actors that request resources; others may share a node.
    """
    if config.gateway.replicas == 1:
        return {"num_cpus": 0, "resources": ON_HEAD_NODE}
    return {"num_cpus": LEAST_CPUS}


def _instances(config: ServeConfig, pool: str) -> Any:
    """Deployment of an engine pool. A group's shell requests no NPUs, because its ranks have their own. The shell of
    ranks on several nodes is on the head node: lost with another node, it could not regroup the remaining ranks.
    """
    section = config.pools[pool]
    alone = not section.is_group
    shell = ON_HEAD_NODE if config.experts.across_nodes else {}
    resources = replica_resources(section.npus_per_instance, section.ub_memory_mib) if alone else shell
    deployment: Any = serve.deployment(InstanceDeployment if alone else ShellDeployment)
    return deployment.options(
        name=pool,
        num_replicas=max(1, section.replicas),
        ray_actor_options={"num_cpus": 0, "resources": resources},
        graceful_shutdown_timeout_s=config.gateway.request_timeout_s,
        **_common(config),
    )


def _ordered(deployment: Any, order: Order | None) -> Any:
    return deployment if order is None else deployment.options(**order.options())


def _start_empty(deployment: Any) -> None:
    """Let a deployment start without replicas: Serve can scale to zero, but its options reject a zero."""
    deployment._deployment_config.num_replicas = 0


def _autoscaler(config: ServeConfig) -> Any:
    deployment: Any = serve.deployment(AutoscalerDeployment)
    return deployment.options(
        name=AUTOSCALER,
        num_replicas=1,
        # On another node it would occupy a host that Ray could otherwise release.
        ray_actor_options={"num_cpus": 0, "resources": ON_HEAD_NODE if config.autoscaler.nodes == "ray" else {}},
        graceful_shutdown_timeout_s=1.0,
        **_common(config),
    )


def _kvcache(config: ServeConfig) -> Any:
    section = config.kvcache
    server: Any = serve.deployment(KvCacheDeployment)
    return server.options(
        name=KVCACHE,
        num_replicas=section.replicas,
        ray_actor_options={"num_cpus": 0, "resources": replica_resources(0, section.ub_memory_mib)},
        graceful_shutdown_timeout_s=section.drain_s + LEAVE_S,
        **_common(config),
    )


def _common(config: ServeConfig) -> dict[str, Any]:
    return {
        "max_ongoing_requests": MANY_REQUESTS,
        "health_check_period_s": config.health.shell_period_s,
        "health_check_timeout_s": config.health.shell_timeout_s,
    }
