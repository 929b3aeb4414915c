"""Phases of a start: a line with seconds for each, and Ray's own messages in a file."""

import logging
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.launch.phases import DeployPhases, LaunchPhases, ray_messages_in


def config(servers: int) -> ServeConfig:
    """A prefill and a decode instance, and memory servers."""
    plain = ServeConfig(ModelConfig(Path("somewhere")))
    return replace(plain, kvcache=replace(plain.kvcache, replicas=servers))


def test_a_phase_ends_once_its_deployments_all_run(capsys: pytest.CaptureFixture[str]) -> None:
    phases = LaunchPhases(age_s=2.0)
    phases.next("Ray")
    deployment = DeployPhases(config(servers=1), phases, "1 node")
    deployment.update(["prefill", "decode"])  # not the pool, which is the first
    deployment.update(["kvcache", "prefill"])
    assert phases.failure().startswith("weights failed after ")
    deployment.update(["kvcache", "prefill", "decode"])
    phases.end()
    lines = re.sub(r"\d+\.\d s", "_", capsys.readouterr().out).splitlines()
    assert [re.sub(" +", " ", line.removeprefix("cloudmatrix: ")) for line in lines] == [
        "checks, imports _",
        "Ray _ 1 node",
        "KV-cache pool _ 1 memory server, 256 MiB",
        "weights _ prefill 1, decode 1",
        "gateway _",
        "ready after _",
    ]


def test_a_deployment_is_followed_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    polled = threading.Event()

    def running() -> list[str]:
        polled.set()
        raise OSError

    with DeployPhases(config(servers=0), LaunchPhases(), "").followed(running):
        assert polled.wait(60.0)
        assert "weights" not in capsys.readouterr().out
    assert "weights" in capsys.readouterr().out, "though the last poll failed"


def test_a_terminal_shows_the_phase_in_progress() -> None:
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as shown, open(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        phases, text = LaunchPhases(), b""
        while b"..." not in text:
            text += shown.read(200)
        phases.next("Ray")
        phases.close()
        phases.close()
        text += shown.read(200)
    assert re.search(rb"cloudmatrix: checks, imports +0\.\d s \.\.\.\x1b\[K\r", text)
    assert re.search(rb"cloudmatrix: checks, imports +\d\.\d s\x1b\[K\r?\n", text)


def test_messages_of_ray_go_to_a_file_and_ours_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", open(2, "w", buffering=1, closefd=False))  # pytest's own is another descriptor
    ours, rays = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(ours)
    ray_logger = logging.Logger("ray")
    ray_logger.addHandler(rays)
    try:
        with ray_messages_in(tmp_path / "launcher.log"):
            os.write(2, b"[E] Failed to connect to GCS\n")
            ray_logger.warning("The object store is using /tmp")
            logging.getLogger("serving").warning("memory is short")
        ray_logger.warning("after the start")
    finally:
        logging.getLogger().removeHandler(ours)
    assert (tmp_path / "launcher.log").read_text() == "[E] Failed to connect to GCS\nThe object store is using /tmp\n"
    assert capfd.readouterr().err == "memory is short\nafter the start\n"
