"""Other processes for tests of shared memory: fast to start, and killed for real.

A helper process, started once, forks a child for each `start` (milliseconds, against a fresh interpreter's hundreds).
The child runs one action, reports, and then stays until it is killed, so it can be killed while it holds resources.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hardware.errors import HardwareError
from hardware.ub import UbSegment
from hardware.ub.file import keep, locked

Outcome = dict[str, Any]

_KEEP: list[object] = []  # what a child must hold for as long as it lives


def allocate(path: str, nbytes: int, fill: int, owner: str = "child") -> Outcome:
    """Allocate a region and fill it with one byte value."""
    segment = UbSegment.attach(path)
    region = segment.allocate(nbytes, owner)
    segment.view(region)[:] = bytes([fill]) * nbytes
    _KEEP.append(segment)
    return {"offset": region.offset, "nbytes": nbytes, "generation": region.generation}


def read(path: str, offset: int, nbytes: int) -> Outcome:
    """Bytes that this process sees at an offset."""
    return {"hex": bytes(UbSegment.attach(path).read(offset, nbytes)).hex()}


def create(path: str, size_bytes: int) -> Outcome:
    """Create a segment that belongs to this process."""
    segment = UbSegment.create(path, size_bytes)
    _KEEP.append(segment)
    return {"session": segment.session}


def hold_lock(path: str) -> Outcome:
    """Take the segment's lock and keep it."""
    stack = ExitStack()
    stack.enter_context(locked(os.open(path, os.O_RDWR), path))
    _KEEP.append(stack)
    return {}


def keep_bytes(path: str, offset: int, nbytes: int) -> Outcome:
    """Keep a part of a file."""
    keep(os.open(path, os.O_RDONLY), offset, nbytes)
    return {}


def churn(path: str, rounds: int, seed: int) -> Outcome:
    """Allocate and free regions, and check that no other process wrote into them."""
    return {"rounds": _churn(UbSegment.attach(path), rounds, seed)}


def churn_with_forked_child(path: str, rounds: int) -> Outcome:
    """Parent and child use one segment object, which only the fork shares."""
    segment = UbSegment.attach(path)
    child = os.fork()
    done = _churn(segment, rounds, seed=child)
    if child == 0:
        os._exit(0 if done == rounds else 1)
    return {"rounds": done, "child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def _churn(segment: UbSegment, rounds: int, seed: int) -> int:
    dice = random.Random(seed)
    mark = os.getpid().to_bytes(4, "little")
    for _ in range(rounds):
        region = segment.allocate(4 * dice.randint(1, 1000), "churn")
        view = segment.view(region)
        view[:] = mark * (region.nbytes // 4)
        time.sleep(0)
        if bytes(view) != mark * (region.nbytes // 4):
            raise AssertionError("another process wrote into this region")
        segment.release(region)
    return rounds


_ACTIONS: dict[str, Callable[..., Outcome]] = {
    action.__name__: action
    for action in (allocate, read, create, hold_lock, keep_bytes, churn, churn_with_forked_child)
}


class Processes:
    """The test's side: starts, queries and kills children. All have ended when it is closed."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[3],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, action: str, **arguments: object) -> int:
        """Start an action in a new process. Returns: its pid."""
        return int(self._ask({"op": "start", "action": action, "arguments": arguments})["pid"])

    def result(self, pid: int) -> Outcome:
        """Wait for the action's result; an error of the hardware is returned as {"error": class name}."""
        return self._ask({"op": "result", "pid": pid})

    def run(self, action: str, **arguments: object) -> tuple[int, Outcome]:
        """Start an action and wait for its result; the process stays."""
        pid = self.start(action, **arguments)
        return pid, self.result(pid)

    def kill(self, pid: int, *, reap: bool = True) -> None:
        """Kill a process immediately; without `reap` it stays as a zombie."""
        self._ask({"op": "kill", "pid": pid, "reap": reap})

    def close(self) -> None:
        """Kill every child and end the helper."""
        self._helper.communicate(timeout=60)

    def _ask(self, request: Outcome) -> Outcome:
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.write(json.dumps(request) + "\n")
        self._helper.stdin.flush()
        answer: Outcome = json.loads(self._helper.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _child(action: str, arguments: dict[str, Any], report: int) -> None:
    try:
        outcome = _ACTIONS[action](**arguments)
    except (HardwareError, AssertionError) as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    os.write(report, json.dumps(outcome).encode())
    os.close(report)
    while True:
        signal.pause()


def _serve() -> None:
    reports: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: Outcome = {}
        if request["op"] == "start":
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                _child(request["action"], request["arguments"], theirs)
            os.close(theirs)
            reports[pid] = ours
            answer = {"pid": pid}
        elif request["op"] == "result":
            with os.fdopen(reports[request["pid"]], "rb", closefd=False) as pipe:
                answer = json.loads(pipe.read())
        else:
            os.kill(request["pid"], signal.SIGKILL)
            os.waitid(os.P_PID, request["pid"], os.WEXITED | (0 if request["reap"] else os.WNOWAIT))
            os.close(reports.pop(request["pid"]))
        print(json.dumps(answer), flush=True)
    for pid in reports:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _serve()
