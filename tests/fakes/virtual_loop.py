"""An event loop in virtual time: a wait costs no time, and nothing depends on how fast the machine is."""

import asyncio
import selectors
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class _NoWait(selectors.DefaultSelector):
    """A selector that moves a clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector`.

        Raises: RuntimeError if nothing would ever end the wait.
        """
        ready = super().select(0)
        if timeout is None and not ready:
            raise RuntimeError("every task waits, and no timer is set")
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time starts at 0 and jumps to the next timer; `asyncio.to_thread` computes in place.

    Use it as `asyncio.Runner(loop_factory=VirtualLoop)`, without sockets or processes.
    """

    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        """Virtual time [s]."""
        return self._clock.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], T], *args: *Arguments
    ) -> Future[T]:
        """Call a function at once. Returns: a future that is done."""
        done: Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # as a thread would pass it on
            done.set_exception(error)
        return done
