"""A slow deployment reports what it waits for."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from serving.launch import deploying
from serving.launch.deploying import _telling_what_is_missing, missing_replicas


def deployment(message: str = "", **states: int) -> Any:
    return SimpleNamespace(message=message, replica_states=states)


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Deployments listed by Serve, filled by the test; an exception in place of one is raised."""
    there: dict[str, Any] = {}

    def listed() -> Any:
        for error in there.values():
            if isinstance(error, Exception):
                raise error
        return SimpleNamespace(applications={"cloudmatrix": SimpleNamespace(deployments=there)})

    for owner, name, other in ((serve, "status", listed), (deploying, "TELL_PERIOD_S", 0.01)):
        monkeypatch.setattr(owner, name, other)
    return there


def test_each_deployment_that_is_not_complete_is_a_line(status: dict[str, Any]) -> None:
    status["prefill"] = deployment(RUNNING=2)
    status["decode"] = deployment("Deployment has 1 replicas that take long.\nResources ...", RUNNING=1, STARTING=1)
    status["kvcache"] = deployment()
    assert missing_replicas() == [
        "still waiting for decode: 1 running, 1 starting; Deployment has 1 replicas that take long.",
        "still waiting for kvcache: no replica yet",
    ]


def test_it_is_said_while_it_lasts_and_no_longer(status: dict[str, Any]) -> None:
    status["decode"] = deployment(STARTING=1)
    said: list[str] = []
    twice = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with _telling_what_is_missing(say):
        assert twice.wait(60.0)
    assert set(said) == {"still waiting for decode: 1 starting"}
    assert "missing-replicas" not in {one.name for one in threading.enumerate()}


def test_a_serve_that_does_not_answer_keeps_nothing_up(status: dict[str, Any]) -> None:
    status["decode"] = RuntimeError("no controller")
    with _telling_what_is_missing(lambda line: pytest.fail(line)):
        time.sleep(0.05)
    assert "missing-replicas" not in {one.name for one in threading.enumerate()}
