"""Replicas that Serve's controller stops: the named ones, and never more than the surplus."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve._private.constants import REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD

from serving.cluster.serve_replicas import scale_down
from serving.config.health import SHELL_MISSES


class Controller:
    """The used part of Serve's controller."""

    def __init__(self, running: list[str], *, known: bool = True) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stopped: list[str] = []
        ids = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in running]
        state = SimpleNamespace(
            _replicas=SimpleNamespace(get=lambda states: ids if states == [ReplicaState.RUNNING] else []),
            stop_replicas=lambda gone: self.stopped.extend(one.unique_id for one in gone),
        )
        self.deployment_state_manager = SimpleNamespace(_deployment_states={"decode": state} if known else {})

    def update_deployment_replicas(self, deployment: Any, replicas: int) -> None:
        self.calls.append((deployment, replicas))


@pytest.mark.parametrize(
    ("leaving", "stopped"),
    [(("c", "a"), ["c", "a"]), (("c",), ["c"]), (("x", "b"), ["b"]), (("a", "b", "c"), ["a", "b"]), ((), [])],
)
def test_those_that_are_named_leave_but_no_more_than_are_too_many(leaving: tuple[str, ...], stopped: list[str]) -> None:
    controller = Controller(["a", "b", "c"])
    assert scale_down(controller, "decode", 1, leaving) == tuple(stopped)
    assert (controller.calls, controller.stopped) == ([("decode", 1)], stopped)


def test_another_serve_than_we_know_chooses_itself() -> None:
    controller = Controller(["a"], known=False)
    assert scale_down(controller, "decode", 0, ("a",)) == ()
    assert (controller.calls, controller.stopped) == ([("decode", 0)], [])


def test_serve_replaces_a_frozen_replica_after_as_many_misses_as_virtual_time() -> None:
    assert SHELL_MISSES == REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD
