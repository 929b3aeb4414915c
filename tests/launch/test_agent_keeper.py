"""An agent of Ray's that dies is restarted, and never outlives the raylet."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.launch import agent_keeper
from serving.launch.agent_keeper import LONGEST_PAUSE_S, next_pause_s, with_known_ports
from serving.launch.ray_parts import kept

AGENT = "import os, sys, time; print(os.getpid(), os.environ['RAY_RAYLET_PID'], flush=True); time.sleep(600)"
RAYLET = """
import os, subprocess, sys, time
os.environ["RAY_RAYLET_PID"] = str(os.getpid())
subprocess.Popen(sys.argv[1:])
time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended, or is a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[str]]:
    """Start a keeper, which starts an agent; every agent reports its own pid, and the pid that it considers the
    raylet.
    """
    keeper = [sys.executable, "-I", "-S", agent_keeper.__file__, sys.executable, "-c", AGENT]
    command = [sys.executable, "-c", RAYLET, *keeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process
        process.kill()


def told(raylet: subprocess.Popen[str]) -> tuple[int, int]:
    assert raylet.stdout is not None
    agent, keeper = raylet.stdout.readline().split()
    return int(agent), int(keeper)


def test_an_agent_that_is_killed_comes_back(raylet: subprocess.Popen[str]) -> None:
    agent, keeper = told(raylet)
    for _ in range(2):
        os.kill(agent, signal.SIGKILL)
        killed, (agent, same) = agent, told(raylet)
        assert agent != killed
        assert same == keeper
    raylet.kill()
    until(lambda: gone(agent) and gone(keeper))


def test_without_its_keeper_an_agent_does_not_live(raylet: subprocess.Popen[str]) -> None:
    agent, keeper = told(raylet)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: gone(agent))


def test_an_agent_that_does_not_stay_is_waited_for_ever_longer() -> None:
    pauses = [0.0]
    for _ in range(8):
        pauses.append(next_pause_s(pauses[-1], lived_s=0.1))
    assert pauses[1:4] == [0.25, 0.5, 1.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert next_pause_s(pauses[-1], lived_s=60.0) == 0.0


def test_it_comes_back_at_the_port_that_the_first_one_chose(tmp_path: Path) -> None:
    """The raylet reads the number once."""
    (tmp_path / "runtime_env_agent_port_node7").write_text("40123")
    (tmp_path / "metrics_agent_port_other").write_text("1")
    command = ["python", "main.py", "--node-id=node7", f"--session-dir={tmp_path}", "--grpc-port=0"]
    assert with_known_ports([*command, "--runtime-env-agent-port=0"]) == [*command, "--runtime-env-agent-port=40123"]
    assert with_known_ports([*command, "--listen-port=52365"]) == [*command, "--listen-port=52365"]


def test_only_agents_get_a_keeper() -> None:
    command = ["raylet", "--dashboard_agent_command=python agent.py --head", "--temp_dir=/tmp", "--head"]
    raylet, agent, *rest = kept(command)
    assert (raylet, rest) == ("raylet", ["--temp_dir=/tmp", "--head"])
    assert agent.startswith(f"--dashboard_agent_command={sys.executable} -I -S ")
    assert agent.endswith("agent_keeper.py python agent.py --head")
    assert kept(["gcs_server", "--port=0"]) == ["gcs_server", "--port=0"]
    worker = kept(["raylet", "--python_worker_command=python default_worker.py"], ["python", "client.py"])
    assert worker == ["raylet", "--python_worker_command=python client.py python default_worker.py"]
