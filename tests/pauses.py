"""Pauses of the machine: tests of real time that fail in one are run again.

Some tests are about time itself: a silence of 0.4 s is noticed, tokens come 10 ms apart. What they find says nothing
while a shared machine takes the processor away. Such a test is marked `real_time`; while it runs, a thread on each CPU
sleeps for a few milliseconds again and again and notes how late it woke. A failure counts if the machine kept time, and
at the latest when the test has failed `ATTEMPTS` times. `pytest-rerunfailures` does the running again, and tells of it.
"""

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

ATTEMPTS = 5
NAP_S = 0.004
PAUSE_S = 0.015
"""Shorter ones no test minds."""


class PauseWatch:
    """How long the CPUs that this process may use stood still, as those who slept on them saw it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._look, args=(cpu,), name=f"pause-watch-{cpu}", daemon=True)
            for cpu in os.sched_getaffinity(0)
        ]

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look no more; `longest_s` stays."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _look(self, cpu: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        while not self._stop.is_set():
            begun = time.monotonic()
            time.sleep(NAP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - begun - NAP_S)


WATCH = pytest.StashKey[PauseWatch]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lets a `real_time` test that failed be run again if the machine paused."""
    if item.get_closest_marker("real_time") and not item.get_closest_marker("flaky"):
        item.add_marker(pytest.mark.flaky(reruns=ATTEMPTS - 1, condition=lambda: paused(item)))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins to look before anything of a `real_time` test."""
    if item.get_closest_marker("real_time"):
        if WATCH in item.stash:
            sweep()
        item.stash[WATCH] = PauseWatch()
        item.stash[WATCH].start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Looks until all of the test is over."""
    try:
        return (yield)
    finally:
        if WATCH in item.stash:
            item.stash[WATCH].stop()


def paused(item: pytest.Item) -> bool:
    """Whether the machine paused during the last attempt of a test."""
    return item.stash[WATCH].longest_s > PAUSE_S


def sweep() -> None:
    """Ends what a failed attempt left open: an unclosed socket is blamed on the test that runs when it is found."""
    for kept in ("last_exc", "last_type", "last_value", "last_traceback"):  # its frames, for a debugger
        if hasattr(sys, kept):
            delattr(sys, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
