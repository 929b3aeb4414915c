"""Tests of real time on a machine with other load.

Some tests are about time itself: a silence of 0.4 s is noticed, tokens arrive 10 ms apart. Their failure proves nothing
while other processes, or the host of a virtual machine, take the processor away. Such a test is marked `real_time`.
While it runs, a thread on each CPU sleeps for a few milliseconds again and again and records how late it woke, and the
kernel's pressure counter records how long tasks waited for a CPU. A failure on a machine that kept time is a failure.
On a machine that did not, the test runs again (pytest-rerunfailures); if the last attempt fails as well, it is reported
as skipped: "not judged".
"""

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ATTEMPTS = 3
NAP_S = 0.004
PAUSE_S = 0.015
"""No test depends on shorter ones."""
WAITED = 0.25
"""Share of a test's duration during which some task waited for a CPU, above which the machine counts as busy."""
PRESSURE = Path("/proc/pressure/cpu")
"""Absent where the kernel does not count it."""


class PauseWatch:
    """Records how long the CPUs that this process may use were paused, and how long tasks waited for one."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._begun_s, self._waited_s = time.monotonic(), _waited_s()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._look, args=(cpu,), name=f"pause-watch-{cpu}", daemon=True)
            for cpu in os.sched_getaffinity(0)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads; the figures stay."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def verdict(self) -> str:
        """Why a failure so far proves nothing; empty if the machine kept time."""
        if self.longest_s > PAUSE_S:
            return f"the machine paused for {self.longest_s * 1e3:.0f} ms"
        waited = (_waited_s() - self._waited_s) / max(time.monotonic() - self._begun_s, 1e-3)
        return f"tasks waited for a CPU {waited:.0%} of the time" if waited > WAITED else ""

    def _look(self, cpu: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        while not self._stop.is_set():
            begun = time.monotonic()
            time.sleep(NAP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - begun - NAP_S)


def _waited_s() -> float:
    """Seconds since boot during which some task waited for a CPU."""
    if not PRESSURE.exists():
        return 0.0
    return int(PRESSURE.read_text().partition("total=")[2].split()[0]) / 1e6


WATCH = pytest.StashKey[PauseWatch]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a `real_time` test run again if it failed while the machine did not keep time."""
    if item.get_closest_marker("real_time") and not item.get_closest_marker("flaky"):
        item.add_marker(pytest.mark.flaky(reruns=ATTEMPTS - 1, condition=lambda: bool(item.stash[WATCH].verdict())))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start to watch before any part of a `real_time` test runs."""
    if item.get_closest_marker("real_time"):
        if WATCH in item.stash:
            sweep()
        item.stash[WATCH] = PauseWatch()
        item.stash[WATCH].start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Watch until the whole test has finished."""
    try:
        return (yield)
    finally:
        if WATCH in item.stash:
            item.stash[WATCH].stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn the last failure of a `real_time` test into "not judged" if the machine did not keep time."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    last = getattr(item, "execution_count", ATTEMPTS) >= ATTEMPTS
    if report.failed and last and WATCH in item.stash and (verdict := item.stash[WATCH].verdict()):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: not judged: {verdict}")
    return report  # type: ignore[return-value]


def sweep() -> None:
    """Close what a failed attempt left open: an unclosed socket is attributed to the test that runs when it is
    found.
    """
    for kept in ("last_exc", "last_type", "last_value", "last_traceback"):  # its frames, for a debugger
        if hasattr(sys, kept):
            delattr(sys, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
