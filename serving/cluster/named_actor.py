"""Detached actors with a name, which outlive a deployment: the next one makes them anew, with what it knows."""

import contextlib
import time
from typing import Any

import ray

from serving.cluster.membership import NAMESPACE
from serving.cluster.nodes import ON_HEAD_NODE
from serving.errors import SilentError

TAKEN_S = 10.0
"""How long the name of an actor that was ended may stay taken."""
_PAUSE_S = 0.05


def renew_actor(actor_class: Any, name: str, *arguments: Any) -> Any:
    """Make a detached actor on the head's node; one that an earlier deployment has left under its name ends first.

    Raises: SilentError if the name stays taken. Blocks.
    """
    options = actor_class.options(name=name, namespace=NAMESPACE, lifetime="detached", resources=ON_HEAD_NODE)
    end = time.monotonic() + TAKEN_S
    while True:
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(name, NAMESPACE))
        try:
            return options.remote(*arguments)
        except ValueError as error:  # still there, or an old replica was faster
            if time.monotonic() > end:
                raise SilentError(f"{name} of an earlier deployment does not end; try again") from error
            time.sleep(_PAUSE_S)


def end_actors() -> list[str]:
    """End every actor of the system that has a name. Returns: their names. Raises: what Ray raises."""
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
    for name in names:
        with contextlib.suppress(ValueError):  # gone meanwhile
            ray.kill(ray.get_actor(name, NAMESPACE))
    return sorted(names)
