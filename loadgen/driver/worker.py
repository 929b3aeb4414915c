"""A worker process: reads jobs from its socket, sends them at their time, writes back what happened.

It stays out of reach of Ctrl-C (the main process decides what that means) and dies with the main process: by the
kernel's parent-death signal where there is one, and by the end of the socket everywhere.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import traceback
from typing import Any, cast

import uvloop

from loadgen.driver.conductor import Conductor
from loadgen.driver.messages import FrameSplitter, FromWorker, Setup, WorkerFailed, frame, to_worker
from loadgen.errors import LoadgenError, UsageError

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent_pid: int) -> None:
    """Run the worker to completion.

    Args:
        fd: the socket to the main process. parent_pid: the main process.
    Effects: ignores SIGINT; the kernel kills this process when its parent ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent_pid)
    with socket.socket(fileno=fd) as own:
        own.setblocking(False)
        uvloop.run(_work(own))


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; where there is no such service, the socket's end will do.

    Effects: exits if the parent has already exited.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


class MainLink(asyncio.Protocol):
    """The socket to the main process. `conductor`: there after the first frame."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._conductor: Conductor | None = None
        self._done = False
        self._drained = asyncio.Event()
        self.conductor: asyncio.Future[Conductor] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is in use."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        """The main process has exited; pending output is dropped."""
        self._drained.set()
        if not self._done:
            os._exit(1)

    def data_received(self, data: bytes) -> None:
        """Handle received frames; the first creates the conductor, which receives all others."""
        for body in self._splitter.feed(data):
            message = to_worker(body)
            if isinstance(message, Setup):
                self._conductor = Conductor(message, self.write, self.unwritten_bytes)
                self.conductor.set_result(self._conductor)
            elif self._conductor is not None:
                self._conductor.handle(message)

    def write(self, data: bytes) -> None:
        """Write frames."""
        if self._transport is not None:
            self._transport.write(data)

    def unwritten_bytes(self) -> int:
        """Bytes that the main process has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def finish(self, last: FromWorker) -> None:
        """Write the last message, and wait until the socket is closed."""
        self._done = True
        self.write(frame(last))
        if self._transport is not None:
            self._transport.close()  # after all data has been written
            await self._drained.wait()


async def _work(own: socket.socket) -> None:
    """From the first frame to the last."""
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(MainLink, sock=own)
    last: FromWorker
    try:
        conductor = await link.conductor
        loop.set_exception_handler(lambda loop, context: _surface(conductor, loop, context))
        last = await conductor.run()
    except LoadgenError as error:
        last = WorkerFailed(isinstance(error, UsageError), str(error))
    except Exception as error:
        traceback.print_exc()
        last = WorkerFailed(False, f"{type(error).__name__}: {error}")
    await link.finish(last)


def _surface(conductor: Conductor, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback failed. A connection's trouble is a request's own; anything else would make the run hang silently."""
    loop.default_exception_handler(context)
    error = context.get("exception")
    if error is not None and not isinstance(error, OSError):
        conductor.fail(error)
