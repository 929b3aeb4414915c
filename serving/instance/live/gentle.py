"""Runs work at low CPU priority, on a separate thread.

A thread may lower its own priority, but needs a privilege to raise it again. So the thread ends with its work. Do not
start a longer-lived thread from it, since that would inherit the low priority.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

NICENESS = 10
"""A ninth of the usual weight. Not the lowest priority, at which a lock might be held for seconds."""


def run_gently(work: Callable[[], Result]) -> Result:
    """Run a function at low priority, and wait for it.

    Raises: the function's errors.
    """
    done: Future[Result] = Future()

    def run() -> None:
        with contextlib.suppress(OSError):  # not on Linux, or forbidden: the priority stays the usual one
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="gentle", daemon=True)
    thread.start()
    thread.join()
    return done.result()
