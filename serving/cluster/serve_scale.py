"""Scale down a Serve deployment by chosen replicas, which Serve's scale API does not support.

Runs inside Serve's controller, between two rounds of its loop, so that these have left when it checks for surplus. It
uses private parts of the controller; if any is missing, Serve chooses the replicas itself.
"""

import logging
from collections.abc import Sequence
from typing import Any

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
