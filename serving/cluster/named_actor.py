"""Detached actors with a name, which outlive a deployment: the next one makes them anew, with what it knows."""

import contextlib
import time
from collections.abc import Callable
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


def _named_actors() -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in listed if one["namespace"] == NAMESPACE)


def _kill(name: str) -> None:
    with contextlib.suppress(ValueError):  # gone meanwhile
        ray.kill(ray.get_actor(name, NAMESPACE))


def end_actors(
    listed: Callable[[], list[str]] = _named_actors, kill: Callable[[str], None] = _kill, patience_s: float = TAKEN_S
) -> list[str]:
    """End every actor of the system that has a name, and wait until Ray lists none of them.

    `ray.kill` returns before Ray has acted on it, and a memory server that leaves last may have made the pool's
    controller anew meanwhile, so what is still listed is killed again.

    Args:
        listed: names of those that are alive. kill: asks for the end of one.
        patience_s: how long they may take together.

    Returns: their names.
    Raises: SilentError if one is still there after that; what Ray raises. Blocks.
    """
    ended: set[str] = set()
    end = time.monotonic() + patience_s
    while names := listed():
        if ended and time.monotonic() > end:
            raise SilentError(f"{', '.join(names)} did not end within {patience_s:.0f} s; run `cloudmatrix down` again")
        ended.update(names)
        for name in names:
            kill(name)
        time.sleep(_PAUSE_S)
    return sorted(ended)
