"""A slow deployment reports what it waits for."""

import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from serving.launch.deploying import missing_replicas, report_missing
from serving.launch.phases import repeated


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

    monkeypatch.setattr(serve, "status", listed)
    return there


def test_each_deployment_that_is_not_complete_is_a_line(status: dict[str, Any]) -> None:
    status["prefill"] = deployment(RUNNING=2)
    status["decode"] = deployment("Deployment has 1 replicas that take long.\nResources ...", RUNNING=1, STARTING=1)
    status["kvcache"] = deployment()
    assert missing_replicas() == [
        "still waiting for decode: 1 running, 1 starting; Deployment has 1 replicas that take long.",
        "still waiting for kvcache: no replica yet",
    ]


def test_it_is_said_while_it_lasts_and_no_longer(status: dict[str, Any], tmp_path: Path) -> None:
    status["decode"] = deployment(STARTING=1)
    said: list[str] = []
    twice = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with repeated(partial(report_missing, say, tmp_path), 0.01, "missing-replicas"):
        assert twice.wait(60.0)
    assert said[0] == "still waiting for decode: 1 starting"
    assert "load" in said[1]
    assert "missing-replicas" not in {one.name for one in threading.enumerate()}


def test_a_serve_that_does_not_answer_keeps_nothing_up(status: dict[str, Any], tmp_path: Path) -> None:
    status["decode"] = RuntimeError("no controller")
    said: list[str] = []
    with repeated(partial(report_missing, said.append, tmp_path), 0.01, "missing-replicas"):
        time.sleep(0.05)
    assert said == []
    assert "missing-replicas" not in {one.name for one in threading.enumerate()}
