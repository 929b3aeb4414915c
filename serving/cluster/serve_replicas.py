"""Ray Serve's replicas, by the names of their actors: its status omits those of deployments being deleted."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
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


# Fewer rounds of the loop of Serve's controller, which makes ten a second, each with three calls to Ray's GCS.
#
# A round is skipped only if it would find nothing to do: no health check is due or unanswered, nothing starts, stops or
# is deployed, and no other application or proxy exists. So deaths are noticed as soon as before. Runs inside the
# controller and uses private parts of it; if any is missing, no round is skipped.

MOST_SKIPPED = 5
"""Rounds skipped in succession: nodes that join or leave are noticed this much later."""
LATEST = 1.1
"""Serve draws the time between two health checks of a replica, up to this multiple of the period."""


def paced_details(controller: Any, app: str) -> dict[str, Any]:
    """Serve's details of all applications. Effects: from now on the controller skips rounds without work."""
    if "run_control_loop_step" not in vars(controller):
        controller.run_control_loop_step = partial(paced_step, controller, app, controller.run_control_loop_step)
    details: dict[str, Any] = controller.get_serve_instance_details()
    return details


async def paced_step(controller: Any, app: str, step: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """One round of the controller's loop, and the pauses of those after it that are skipped."""
    from ray.serve._private.constants import CONTROL_LOOP_INTERVAL_S

    await step(*arguments)
    for _ in range(MOST_SKIPPED):
        try:
            if has_work(controller, app, time.time() + CONTROL_LOOP_INTERVAL_S):
                return
        except Exception as error:  # unknown version of Serve
            logger.debug("no round of the controller is skipped (%r)", error)
            return
        await asyncio.sleep(CONTROL_LOOP_INTERVAL_S)


def has_work(controller: Any, app: str, at: float) -> bool:
    """Whether the controller's round at this time [Unix time, s] has anything to do."""
    from ray.serve._private.common import DeploymentStatus, ReplicaState

    deployments, proxies = controller.deployment_state_manager._deployment_states, controller.proxy_state_manager
    statuses = [one.status for one in controller.application_state_manager.list_app_statuses().values()]
    if controller._shutting_down or statuses != ["RUNNING"] or (proxies is not None and proxies._proxy_states):
        return True
    for deployment, state in deployments.items():
        if deployment.app_name != app or state.curr_status_info.status is not DeploymentStatus.HEALTHY:
            return True
        for replica in state._replicas.get():
            actor = replica._actor
            due_at = actor._last_health_check_time + LATEST * actor.health_check_period_s
            if replica.actor_details.state is not ReplicaState.RUNNING or replica.has_outstanding_check or at > due_at:
                return True
    return False


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
