"""All files and processes of a start are removed within seconds, also if its launcher is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.cluster.session import SystemSession
from serving.config.cluster import ClusterConfig
from serving.launch.local_cluster import LocalCluster
from serving.launch.reaper import LAST_WORDS_S, Reaper

LAUNCHER = """
import sys, time
from pathlib import Path
from serving.launch.reaper import Reaper
reaper = Reaper([Path(sys.argv[1]) / "ub-abc123-"], Path(sys.argv[1]) / "pool")
print(reaper._process.pid, flush=True)
time.sleep(600)
"""


def process_of(reaper: Reaper) -> "subprocess.Popen[bytes]":
    return reaper._process


def left_by_a_start(folder: Path) -> list[Path]:
    (folder / "pool").mkdir()
    segments = [folder / name for name in ("ub-abc123-node-decode", "ub-abc123-node-prefill", "ub-other-node-decode")]
    for path in (*segments, folder / "pool" / "blocks"):
        path.touch()
    return segments


def test_of_a_launcher_that_is_killed_nothing_stays(tmp_path: Path) -> None:
    decode, prefill, others = left_by_a_start(tmp_path)
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        reaper = int(launcher.stdout.readline())
        assert os.getsid(reaper) == reaper, "Ctrl-C in the terminal does not reach it"
        assert decode.exists()
        launcher.kill()
    end = time.monotonic() + 60
    while decode.exists() or prefill.exists() or (tmp_path / "pool").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert others.exists()
    os.kill(reaper, signal.SIGKILL)  # it would stay for a while, for later files


def test_a_launcher_that_ends_everything_itself_leaves_no_reaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.launch.reaper.DISMISS_S", 60.0)  # its interpreter may not have started yet
    decode, *_ = left_by_a_start(tmp_path)
    reaper = Reaper([tmp_path / "ub-abc123-"], tmp_path / "pool")
    reaper.dismiss()
    assert process_of(reaper).returncode == 0
    assert decode.exists(), "it has nothing to remove"
    reaper.dismiss()


def test_a_reaper_that_stands_still_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.launch.reaper.DISMISS_S", 0.2)
    reaper = Reaper([tmp_path / "ub-abc123-"], tmp_path / "pool")
    os.kill(process_of(reaper).pid, signal.SIGSTOP)
    reaper.dismiss()
    assert process_of(reaper).returncode == -signal.SIGKILL


def test_a_reaper_that_was_killed_is_not_missed(tmp_path: Path) -> None:
    reaper = Reaper([tmp_path / "ub-abc123-"], tmp_path / "pool")
    process_of(reaper).kill()
    process_of(reaper).wait()
    begun = time.monotonic()
    reaper.dismiss()
    assert time.monotonic() - begun < LAST_WORDS_S / 2, "nobody waits for its last words"
    assert process_of(reaper).returncode == -signal.SIGKILL


def test_a_reaper_that_dies_is_replaced_and_leaves_no_zombie(tmp_path: Path) -> None:
    """Its task is still done: the second one removes what a killed launcher leaves."""
    decode, *_ = left_by_a_start(tmp_path)
    command = [sys.executable, "-c", TENDING_LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        first = int(launcher.stdout.readline())
        os.kill(first, signal.SIGKILL)
        second = int(launcher.stdout.readline())
        assert second != first
        assert not Path(f"/proc/{first}").exists(), "no zombie"
        launcher.kill()
    end = time.monotonic() + 60
    while decode.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(second, signal.SIGKILL)


TENDING_LAUNCHER = LAUNCHER.replace(
    "time.sleep(600)",
    "while not reaper.tend(): time.sleep(0.01)\nprint(reaper._process.pid, flush=True)\ntime.sleep(600)",
)


def test_the_launcher_tends_it_while_it_tends_ray(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launcher = LocalCluster(ClusterConfig(), SystemSession("abc123", tmp_path, "token"))
    launcher._reaper = Reaper([tmp_path / "ub-abc123-"], tmp_path / "pool")
    launcher._tend_reaper()
    first = launcher._reaper._process
    first.kill()
    first.wait()
    launcher._tend_reaper()
    assert launcher._reaper._process.poll() is None
    assert "it was replaced" in caplog.text
    launcher._reaper._command = ["/nowhere/python"]
    launcher._reaper._process.kill()
    launcher._reaper._process.wait()
    launcher._tend_reaper()  # and Ray is tended nevertheless
    assert "cannot be restarted" in caplog.text
    launcher._reaper.dismiss()
    launcher._tend_reaper()
    assert not launcher._reaper.tend(), "dismissed, it is not started any more"
