"""Work at low priority, on a thread of its own: it gets what others leave of the processor.

A thread may lower its own priority, but needs a privilege to raise it again. So it ends with its work, and a thread
that lives longer must not be started from it, since it would inherit the low priority.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

NICENESS = 10
"""A ninth of the usual weight. Not the lowest priority, with which a lock might be held for seconds."""


def run_gently(work: Callable[[], Result]) -> Result:
    """Do something at low priority, and wait for it.

    Raises: what it raises.
    """
    done: Future[Result] = Future()

    def run() -> None:
        with contextlib.suppress(OSError):  # not on Linux, or forbidden: then at the usual one
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="gentle", daemon=True)
    thread.start()
    thread.join()
    return done.result()
