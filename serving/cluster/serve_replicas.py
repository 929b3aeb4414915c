"""Ray Serve's replicas, by the names of their actors: its status omits those of deployments being deleted."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray.serve._private.common import ReplicaID


def replicas_among(named: Iterable[Mapping[str, str]]) -> list[ReplicaID]:
    """Replicas of all applications.

    Args:
        named: result of `ray.util.list_named_actors(all_namespaces=True)`; other actors are ignored.
    """
    names = [one["name"] for one in named]
    return [ReplicaID.from_full_id_str(name) for name in names if ReplicaID.is_full_id_str(name)]


# Scale down a Serve deployment by chosen replicas, which Serve's scale API does not support.
#
# Runs inside Serve's controller, between two rounds of its loop, so that these have left when it checks for surplus. It
# uses private parts of the controller; if any is missing, Serve chooses the replicas itself.

logger = logging.getLogger("ray.serve")


def scale_down(controller: Any, deployment: Any, replicas: int, leaving: Sequence[str]) -> tuple[str, ...]:
    """Set a target and stop replicas in Serve's way, so that they drain.

    Args:
        controller: Serve's, which runs this.
        deployment: Serve's id of it.
        leaving: names of replicas; only as many of them are stopped as exceed the target.
    Returns: names of the leaving replicas.
    Raises: Serve's error if it rejects the target.
    """
    controller.update_deployment_replicas(deployment, replicas)
    try:
        return _stop(controller.deployment_state_manager, deployment, replicas, leaving)
    except Exception:  # unknown version of Serve: it chooses the replicas itself
        logger.exception("Serve chooses which replicas of %s stop", deployment)
        return ()


def _stop(manager: Any, deployment: Any, replicas: int, leaving: Sequence[str]) -> tuple[str, ...]:
    from ray.serve._private.common import ReplicaState  # here Serve is loaded

    state = manager._deployment_states[deployment]
    running = {one.replica_id.unique_id: one.replica_id for one in state._replicas.get([ReplicaState.RUNNING])}
    surplus = max(0, len(running) - replicas)
    gone = tuple(name for name in leaving if name in running)[:surplus]
    state.stop_replicas([running[name] for name in gone])
    return gone


# Ray Serve's own listener in each replica, restricted to loopback if the node's address is loopback.

EVERY_INTERFACE = "[::]:"


def keep_on_loopback() -> None:
    """Make this replica's gRPC server, which Serve opens after the constructor, listen on loopback only.

    The server unpickles its input, and Serve binds it to every interface, without a setting. With
    `RAY_AUTH_MODE=token`, which our own start sets, it refuses calls without the token in Ray 2.60; on a Ray started
    without that mode it accepts them from any client. This system does not use it: calls between deployments go through
    Ray. On a node with another address nothing changes.

    Effects: on Serve's replica module in this process; a second call changes nothing.
    """
    import ray
    from ray.serve._private import replica  # Serve names no public place for this

    if ray.util.get_node_ip_address() != "127.0.0.1":
        return
    serve_replica: Any = replica
    bind = serve_replica.add_port_to_grpc_server
    if getattr(bind, "on_loopback", False):
        return

    def bind_on_loopback(server: Any, address: str) -> int:
        if address.startswith(EVERY_INTERFACE):
            address = f"127.0.0.1:{address.removeprefix(EVERY_INTERFACE)}"
        return int(bind(server, address))

    bind_on_loopback.on_loopback = True  # type: ignore[attr-defined]
    serve_replica.add_port_to_grpc_server = bind_on_loopback
