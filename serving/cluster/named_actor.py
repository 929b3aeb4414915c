"""Named detached actors, which outlive a deployment; the next deployment recreates them with its configuration."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray

from serving.cluster.membership import NAMESPACE
from serving.cluster.nodes import ON_HEAD_NODE
from serving.errors import SilentError

TAKEN_S = 10.0
"""How long the name of a killed actor may stay in use [s]."""
QUIET_S = 3.0
"""Three times the time in which a memory server detects the end of the pool's controller [s]."""
_PAUSE_S = 0.05


def renew_actor(actor_class: Any, name: str, *arguments: Any) -> Any:
    """Create a detached actor on the head's node, after stopping one of an earlier deployment with the same name.

    Raises: SilentError if the name stays in use. Blocks.
    """
    options = actor_class.options(name=name, namespace=NAMESPACE, lifetime="detached", resources=ON_HEAD_NODE)
    end = time.monotonic() + TAKEN_S
    while True:
        with contextlib.suppress(ValueError):  # no such actor
            ray.kill(ray.get_actor(name, NAMESPACE))
        try:
            return options.remote(*arguments)
        except ValueError as error:  # it still exists, or an earlier replica recreated it
            if time.monotonic() > end:
                raise SilentError(f"{name} of an earlier deployment did not stop; try again") from error
            time.sleep(_PAUSE_S)


def _named_actors() -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in listed if one["namespace"] == NAMESPACE)


def _kill(name: str) -> None:
    with contextlib.suppress(ValueError):  # already stopped
        ray.kill(ray.get_actor(name, NAMESPACE))


def end_actors(
    listed: Callable[[], list[str]] = _named_actors,
    kill: Callable[[str], None] = _kill,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Stop every named actor of the system, until Ray has listed none for `QUIET_S`.

    `ray.kill` returns before Ray has acted on it, and a memory server that is still stopping may notice the loss of the
    pool's controller and recreate it.

    Args:
        listed: names of live actors. kill: requests the end of one.
        clock, pause: for tests.

    Returns: their names.
    Raises: SilentError if an actor still or again exists after `TAKEN_S`; Ray's errors. Blocks.
    """
    ended: set[str] = set()
    last_seen = begun = clock()
    while (names := listed()) or (ended and clock() - last_seen < QUIET_S):
        now = clock()
        if names and ended and now - begun > TAKEN_S:
            raise SilentError(f"{', '.join(names)} did not stop within {TAKEN_S:.0f} s; run `cloudmatrix down` again")
        if names:
            last_seen = now
            ended.update(names)
        for name in names:
            kill(name)
        pause(_PAUSE_S)
    return sorted(ended)
