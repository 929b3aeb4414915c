"""Threads for KV moves, which may hang as long as their sources do."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any


class WorkThreads:
    """Runs work concurrently, starting it in submission order; it need not be waited for at the end.

    Args:
        at_once: maximum number of concurrent calls.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=name)
        self._unfinished: set[Future[None]] = set()

    def submit(self, work: Callable[[Any], None], order: object) -> None:
        """Run `work(order)` as soon as a thread is free."""
        future = self._threads.submit(work, order)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)

    def stop(self, timeout_s: float) -> None:
        """Drop queued work, and wait for the rest until the timeout [s]; hanging work is abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        wait(list(self._unfinished), timeout_s)
