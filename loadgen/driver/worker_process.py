"""Main-process handle of a worker: a child process and the socket to it.

The child is started by its own interpreter command, not by multiprocessing: no module of the parent is imported again,
so it starts in some 0.2 s, and the parent's `__main__` and threads have no influence.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

import loadgen
from loadgen.driver.messages import FrameSplitter, FromWorker, Supply, ToWorker, frame, from_worker
from loadgen.errors import WorkerLost

SEND_DEADLINE_S = 20.0
EXIT_DEADLINE_S = 5.0
STOCK_BYTES = 64 << 20
"""Bytes of jobs that one worker may hold ahead of their time."""
_READ_BYTES = 1 << 20

BOOT = """
import sys
sys.path.insert(0, sys.argv[2])
from loadgen.driver.worker import main
main(int(sys.argv[1]), int(sys.argv[3]))
"""


class WorkerProcess:
    """One worker; `send` is thread-safe, all else belongs to the creating thread.

    Attributes:
        number: as in the records. lost: reason for its early exit, empty while it runs.
    """

    def __init__(self, number: int, depth: int, boot: str = BOOT) -> None:
        """Start it.

        Args:
            depth: jobs that it is to hold before the start.
        Raises: WorkerLost if the system starts no process.
        """
        self.number = number
        self.lost = ""
        self._splitter = FrameSplitter()
        self._writing = threading.Lock()
        self._unstarted: deque[int] = deque()
        self._unstarted_bytes = 0
        self._taken = 0
        self._depth = depth
        self._credit = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs, _interrupts_held_back():
            command = [sys.executable, "-P", "-c", boot, str(theirs.fileno()), _package_root(), str(os.getpid())]
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerLost(f"worker {number} could not be started: {error.strerror}") from error
        ours.setblocking(False)
        self._socket = ours

    def fileno(self) -> int:
        """For `selectors`."""
        return self._socket.fileno()

    def send(self, message: ToWorker) -> bool:
        """Write one message, waiting for buffer space; False if the worker has exited or stopped reading."""
        return self._write(frame(message))

    def give(self, supply: Supply) -> bool:
        """Write one job and note it against the worker's credit."""
        data = frame(supply)
        with self._credit:
            self._unstarted.append(len(data))
            self._unstarted_bytes += len(data)
        return self._write(data)

    def note_credit(self, taken: int, depth: int) -> None:
        """The worker has started `taken` jobs in all, and can hold `depth` more."""
        with self._credit:
            for _ in range(taken - self._taken):
                self._unstarted_bytes -= self._unstarted.popleft()
            self._taken, self._depth = taken, depth

    @property
    def room(self) -> int:
        """Jobs that it would take now; 0 or less if it has enough."""
        with self._credit:
            if self._unstarted_bytes >= STOCK_BYTES:
                return 0
            return self._depth - len(self._unstarted)

    @property
    def unstarted(self) -> int:
        """Jobs that it holds and has not started."""
        return len(self._unstarted)

    def receive(self) -> list[FromWorker] | None:
        """Messages of the worker since the last call; None after the last one."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        try:
            return [from_worker(body) for body in self._splitter.feed(data)]
        except msgspec.DecodeError:
            return None  # its memory is no longer to be trusted; the caller ends it

    def end(self, deadline_s: float = EXIT_DEADLINE_S) -> str:
        """Close the socket, wait for the process, kill it if it does not end by itself.

        Returns: how it ended, for example "killed by signal 9" or "exit status 1".
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            status = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        with self._writing:
            while view and not self.lost:
                try:
                    view = view[self._socket.send(view) :]
                except (BlockingIOError, InterruptedError):
                    writable = select.poll()
                    writable.register(self._socket, select.POLLOUT)
                    if not writable.poll(SEND_DEADLINE_S * 1000):
                        self.lost = f"took nothing for {SEND_DEADLINE_S:g} s"
                except (OSError, ValueError):
                    return False  # it has ended; the receiving side finds the reason
        return not self.lost


def _package_root() -> str:
    return str(Path(loadgen.__file__).resolve().parents[1])


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A child inherits the mask, so that Ctrl-C, which the terminal sends to all, reaches the main process alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
