"""Replicas that Serve's controller stops: the named ones, and never more than the surplus."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private import constants
from ray.serve._private.common import DeploymentID, DeploymentStatus, ReplicaState
from ray.serve._private.constants import REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD
from ray.serve.schema import ApplicationStatus

from serving.cluster.serve_replicas import MOST_SKIPPED, has_work, paced_details, scale_down
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


class RestingController:
    """The used part of a controller with one healthy replica, checked last at 100.0 s."""

    def __init__(self) -> None:
        self.rounds = 0
        self.actor = SimpleNamespace(_last_health_check_time=100.0, health_check_period_s=0.5)
        self.replica = SimpleNamespace(
            _actor=self.actor, actor_details=SimpleNamespace(state=ReplicaState.RUNNING), has_outstanding_check=False
        )
        self.state = SimpleNamespace(
            curr_status_info=SimpleNamespace(status=DeploymentStatus.HEALTHY),
            _replicas=SimpleNamespace(get=lambda: [self.replica]),
        )
        self.deployment_state_manager = SimpleNamespace(_deployment_states={DeploymentID("decode", "ours"): self.state})
        self.applications = {"ours": SimpleNamespace(status=ApplicationStatus.RUNNING)}
        self.application_state_manager = SimpleNamespace(list_app_statuses=lambda: self.applications)
        self.proxy_state_manager: Any = None
        self._shutting_down = False

    async def run_control_loop_step(self, start: float, patience: float, number: int) -> None:
        self.rounds += 1

    def get_serve_instance_details(self) -> dict[str, Any]:
        return {"applications": {}}


def test_a_controller_at_rest_has_work_when_a_health_check_is_due() -> None:
    controller = RestingController()
    assert [has_work(controller, "ours", at) for at in (100.1, 100.5, 100.56)] == [False, False, True]


@pytest.mark.parametrize(
    "happens",
    [
        lambda one: setattr(one.replica, "has_outstanding_check", True),
        lambda one: setattr(one.replica.actor_details, "state", ReplicaState.STARTING),
        lambda one: setattr(one.state.curr_status_info, "status", DeploymentStatus.UPSCALING),
        lambda one: setattr(one.applications["ours"], "status", ApplicationStatus.DELETING),
        lambda one: one.applications.update(other=SimpleNamespace(status=ApplicationStatus.RUNNING)),
        lambda one: setattr(one, "proxy_state_manager", SimpleNamespace(_proxy_states={"n": 1})),
        lambda one: setattr(one, "_shutting_down", True),
    ],
)
def test_whatever_happens_is_work(happens: Callable[[RestingController], None]) -> None:
    controller = RestingController()
    happens(controller)
    assert has_work(controller, "ours", 100.1)


def test_rounds_without_work_are_skipped_but_not_by_a_serve_that_we_do_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    controller = RestingController()
    controller.actor._last_health_check_time = time.time() + 3600.0
    for _ in range(2):
        assert paced_details(controller, "ours") == {"applications": {}}
    asyncio.run(controller.run_control_loop_step(0.0, 1.0, 2))
    assert pauses == [constants.CONTROL_LOOP_INTERVAL_S] * MOST_SKIPPED
    del controller.applications
    asyncio.run(controller.run_control_loop_step(0.0, 1.0, 3))
    assert (len(pauses), controller.rounds) == (MOST_SKIPPED, 2)
