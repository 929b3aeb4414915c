"""Workers are forked from a process that has imported their code, and start without it where that is impossible."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.launch.worker_seed import LENGTH, WorkerSeed
from tests.e2e.server import wait_for

PROGRAM = """
import json, os, sys
loaded, threads = "colorsys" in sys.modules, len(os.listdir("/proc/self/task"))
print(json.dumps([os.getpid(), os.getppid(), sys.argv[1:], os.environ["ASKED"], os.getcwd(), loaded, threads]))
"""


@pytest.fixture
def seed(tmp_path: Path) -> Iterator[WorkerSeed]:
    for name in ("default_worker.py", "setup_worker.py", "other.py"):
        (tmp_path / name).write_text(PROGRAM)
    made = WorkerSeed(tmp_path, ("colorsys",))
    yield made
    made.end()
    made.end()


def start(seed: WorkerSeed, folder: Path, *program: str) -> tuple[int, list[Any]]:
    """Start a program as a raylet does. Returns: pid of the started process, and what the program printed."""
    program = program or (str(folder / "setup_worker.py"), str(folder / "default_worker.py"), "--language=PYTHON")
    command = [*seed.client, sys.executable, *program, "--a=1"]
    environment = {**os.environ, "ASKED": "x"}
    with subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True) as process:
        return process.pid, json.loads(process.communicate(timeout=60)[0])


def test_a_worker_is_a_fork_with_its_own_environment_and_files(seed: WorkerSeed, tmp_path: Path) -> None:
    started, (pid, parent, *rest) = start(seed, tmp_path)
    assert rest == [["--a=1"], "x", "/", True, 1]
    assert started not in (pid, parent)
    assert start(seed, tmp_path)[1][1] == parent, "both have the seed as parent"
    assert bytes(tmp_path) in Path(f"/proc/{parent}/cmdline").read_bytes(), "`chaos` finds a session's processes by it"


def test_another_command_runs_as_it_is(seed: WorkerSeed, tmp_path: Path) -> None:
    started, (pid, _, *rest) = start(seed, tmp_path, str(tmp_path / "other.py"))
    assert (started, rest) == (pid, [["--a=1"], "x", "/", False, 1])
    setup = [str(tmp_path / name) for name in ("setup_worker.py", "default_worker.py")]
    with_environment = [*setup, '--serialized-runtime-env-context={"env_vars": {"A": "1"}}']
    started, (pid, _, arguments, *_) = start(seed, tmp_path, *with_environment)
    assert (started, arguments[0]) == (pid, setup[1]), "Ray's own script sets the environment up"


def test_a_dead_seed_costs_time_only_and_is_replaced(seed: WorkerSeed, tmp_path: Path) -> None:
    assert not seed.tend()
    seed.end()
    started, (pid, *_, loaded, _) = start(seed, tmp_path)
    assert (started, loaded) == (pid, False)
    assert seed.tend()
    assert start(seed, tmp_path)[1][5], "forked again"


def test_no_second_worker_for_a_client_that_gave_up(seed: WorkerSeed, tmp_path: Path) -> None:
    """The client becomes the worker itself after its deadline: a late fork must end."""
    parent = start(seed, tmp_path)[1][1]
    trace = tmp_path / "ran"
    (tmp_path / "default_worker.py").write_text(f"open({str(trace)!r}, 'w')")
    request = b"\0".join([b"/", b"1", os.fsencode(tmp_path / "default_worker.py"), b"A=1"])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(seed.client[-1])
        socket.send_fds(client, [LENGTH.pack(len(request))], [0, 1, 2])
        client.sendall(request)
        assert client.recv(1) == b"r"
        client.shutdown(socket.SHUT_WR)
        wait_for(lambda: not Path(f"/proc/{parent}/task/{parent}/children").read_text(), "the end of the fork")
    assert not trace.exists()


def test_a_worker_ends_with_its_raylet(seed: WorkerSeed, tmp_path: Path) -> None:
    (tmp_path / "default_worker.py").write_text("import time; print('runs', flush=True); time.sleep(600)")
    with subprocess.Popen(["sleep", "600"]) as raylet:
        command = [*seed.client, sys.executable, str(tmp_path / "default_worker.py")]
        environment = {**os.environ, "RAY_RAYLET_PID": str(raylet.pid)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "runs\n"
            raylet.kill()
            assert worker.stdout.read() == "", "closed by its end"


@pytest.mark.parametrize(
    ("imports", "alike"), [("load((*PRELOADED, NATIVE, TORCH))", False), ("import ray.serve", True)]
)
def test_workers_draw_different_ids(imports: str, alike: bool) -> None:
    """Two workers with one object id end each other, and the start waits for them. Ray's own import order is alike."""
    code = f"from serving.launch.worker_seed import *\n{imports}\nprint(forks_draw_alike())"
    drawn = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert drawn.stdout == f"{alike}\n"
