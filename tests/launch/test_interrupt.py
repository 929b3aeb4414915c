"""Signals that end a serving system, at any moment, in any number and frequency."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from serving.launch.launch import Interrupt, Interrupted


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup themselves
    installed = Interrupt()
    installed.install()
    yield installed
    for kind, handler in before.items():
        signal.signal(kind, handler)


# One process for both, since it includes Ray. It ends with the exit code of the launcher, not by SIGINT.
UNDER_NOHUP = """
import os, signal, threading
from serving.launch.launch import Interrupt

interrupt = Interrupt()
interrupt.install()
os.kill(os.getpid(), signal.SIGHUP)
print(interrupt.wait(0.05))
interrupt.raise_now()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    exec("while True: pass")  # as it is while a dataclass is made
except KeyboardInterrupt:
    print("interrupted")
"""
SENDER = "import os, signal, sys\nfor _ in range(4000): os.kill(int(sys.argv[1]), signal.SIGINT)"


@pytest.mark.timeout(60)
def test_signals_in_a_burst_end_the_wait(interrupt: Interrupt) -> None:
    """One handler may interrupt another, or any part of the wait: no handler may wait for a resource that it holds
    itself.
    """
    sender = subprocess.Popen([sys.executable, "-c", SENDER, str(os.getpid())])
    while sender.poll() is None:
        interrupt.__init__()  # type: ignore[misc] # not asked again; the handlers stay
        while not interrupt.wait(0.0005) and sender.poll() is None:
            pass
    os.kill(os.getpid(), signal.SIGINT)
    assert interrupt.wait()
    assert interrupt.wait(), "and it stays so"


def test_without_a_signal_it_waits_as_long_as_asked(interrupt: Interrupt) -> None:
    begun = time.monotonic()
    assert not interrupt.wait(0.05)
    assert time.monotonic() - begun >= 0.05


def test_a_signal_before_its_time_is_noted_and_then_raised_once(interrupt: Interrupt) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted):
        interrupt.raise_now()
    os.kill(os.getpid(), signal.SIGTERM)  # no further effect
    assert interrupt.wait(60)


def test_a_terminal_that_is_closed_ends_it_too(interrupt: Interrupt) -> None:
    assert interrupt.wait(0) is False
    os.kill(os.getpid(), signal.SIGHUP)
    assert interrupt.wait(60)


def test_what_nohup_started_outlives_its_terminal_and_is_interrupted_inside_exec() -> None:
    command = ["nohup", sys.executable, "-c", UNDER_NOHUP]
    told = subprocess.run(command, timeout=50, check=True, capture_output=True, text=True)
    assert told.stdout.split() == ["False", "interrupted"]
