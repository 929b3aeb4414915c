"""A start on a busy machine waits while there is progress, reports what for, and ends only for a known cause."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from ray._private import auto_init_hook

from serving.launch import deploying, patience, ray_parts
from serving.launch.deploying import without_alarm
from serving.launch.launch import Interrupt, Interrupted, _start_ray
from serving.launch.patience import LONGEST_S, STILL_S, StartWait, load_words, processor_ticks, slowness, wait_patiently
from serving.launch.ray_parts import patiently


def wait(comes_after_s: float, *, moves: Callable[[float], int], ended: Callable[[float], str]) -> list[str]:
    """Wait in virtual time. Returns: the printed lines."""
    now, said = [0.0], list[str]()

    def sleep(_: float) -> None:
        now[0] += 0.5

    wait_patiently(
        "Ray's GCS",
        lambda: now[0] >= comes_after_s,
        lambda: moves(now[0]),
        lambda: ended(now[0]),
        said.append,
        lambda: now[0],
        sleep,
    )
    return said


def moving(now: float) -> int:
    """One tick a minute, as on a hopelessly busy machine."""
    return int(now) // 60


def nothing(_: float) -> str:
    return ""


def test_it_waits_for_many_minutes_while_anything_moves_and_says_what_for() -> None:
    said = wait(600.0, moves=moving, ended=nothing)
    assert len(said) >= 10
    assert said[0].startswith("still waiting for Ray's GCS after 15 s: load ")
    assert wait(3.0, moves=moving, ended=nothing) == []


@pytest.mark.parametrize(
    ("moves", "ended", "words"),
    [
        (
            moving,
            lambda now: "Ray's raylet exited with code -6" if now > 40 else "",
            "failed: Ray's raylet exited with code -6",
        ),
        (lambda _: 7, nothing, f"timed out: no progress for {STILL_S:.0f} s"),
        (moving, nothing, f"timed out: it has taken {LONGEST_S:.0f} s"),
        (moving, lambda now: "it was asked to stop" if now > 5 else "", "asked to stop"),
    ],
)
def test_it_ends_on_a_cause(moves: Callable[[float], int], ended: Callable[[float], str], words: str) -> None:
    with pytest.raises(RuntimeError, match=f"Ray's GCS .*{words}"):
        wait(10_000.0, moves=moves, ended=ended)


def test_processes_that_compute_move() -> None:
    before = processor_ticks([os.getpid(), 1 << 30])
    while processor_ticks([os.getpid()]) == before:
        sum(range(10_000))


def test_what_is_not_there_yet_is_asked_for_again_and_what_has_ended_is_a_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.0)
    started = ray_parts._Started()
    monkeypatch.setattr(ray_parts, "_started", started)
    errors: list[Exception] = [RuntimeError("no node"), TimeoutError("none")]

    def attempt() -> str:
        if errors:
            raise errors.pop()
        return "the node"

    assert patiently("a node", attempt, print, lambda: False) == "the node"
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    started.add(process, "raylet")
    errors = [RuntimeError("no node")] * 3
    with pytest.raises(RuntimeError, match="a node failed: Ray's raylet exited with code 3"):
        patiently("a node", attempt, print, lambda: False)
    assert not started.fresh, "another try begins anew"
    errors = [RuntimeError("no node")] * 3
    with pytest.raises(RuntimeError, match="asked to stop"):
        patiently("a node", attempt, print, lambda: True)


def test_ctrl_c_ends_a_patient_wait() -> None:
    class Cluster:
        logs, calls = "nowhere", list[str]()

        def start(self) -> None:
            self.calls.append("start")
            interrupt._handle()
            raise RuntimeError("a node failed: it was asked to stop")

        def abandon(self) -> None:
            self.calls.append("abandon")

    interrupt, cluster = Interrupt(), Cluster()
    with pytest.raises(Interrupted):
        _start_ray(cluster, interrupt)  # type: ignore[arg-type]
    assert cluster.calls == ["start", "abandon"]


def test_a_busy_machine_is_said_and_given_more_time() -> None:
    assert load_words(38.2, 2) == "load 38 on 2 cores, so everything takes longer"
    assert load_words(0.4, 1) == "load 0 on 1 core"
    assert slowness(38.0, 2) == 19
    assert slowness(0.1, 2) == 1
    assert StartWait("it", 0.0).line(1.0, 1.0, 1) is None
    assert deploying.READY_DEADLINE_S >= 120


def test_serve_s_alarm_about_slow_replicas_is_not_repeated() -> None:
    alarm = (
        "Deployment 'decode' in application 'cloudmatrix' has 1 replicas that have taken more than 30s to be scheduled."
        " This may be due to waiting for the cluster to auto-scale or for a runtime environment to be installed."
        " Resources required for each replica: {'CPU': 1}, total resources available: {'CPU': 8}."
        " Use `ray status` for more details."
    )
    assert without_alarm(alarm) == "each takes {'CPU': 1}, and there is {'CPU': 8}"
    assert without_alarm("Deployment 'x' has 1 replicas that have taken more than 30s to initialize.") == ""
    failed = "The deployment failed to start 3 times in a row."
    assert without_alarm(failed) == failed


def test_whoever_has_left_ray_is_not_connected_again_behind_its_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Serve that makes a call in that state would end this process with the node."""
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    ray_parts.leave_ray()
    assert not auto_init_hook.enable_auto_connect
