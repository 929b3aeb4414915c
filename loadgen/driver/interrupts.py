"""Ctrl-C, in two steps: the first ends sending, the second ends waiting."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_on_signals(stop: threading.Event, cut: threading.Event) -> Iterator[None]:
    """While this lasts, the first SIGINT or SIGTERM sets `stop`, the second one `cut`.

    Effects: changes the handlers of this process; only the main thread may do that, any other is left as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            cut.set()
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
