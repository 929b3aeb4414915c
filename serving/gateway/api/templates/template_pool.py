"""Pool of processes that run a model's chat template: started on demand, up to a small number, replaced when lost.

Usable from several event loops concurrently: an idle process is not bound to a loop.
"""

import asyncio
import contextlib
import marshal
import signal
import socket
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor

from serving.errors import InvalidRequestError, OverloadedError
from serving.gateway.api.templates.template_process import CPU_S, LENGTH, TEXT, command

ORDINARY_PROCESSES = 2
"""One renders about a thousand ordinary prompts per second; the other serves those behind a longer conversation."""
LONG_PROCESSES = 2
LONG_BYTES = 1 << 20
"""A conversation of at least this size waits in a queue of its own, and gets a process of its own, so that its memory
is released afterwards. Rendering it takes 0.2 s."""
MOST_WAITING_BYTES = 64 << 20
PATIENCE_S = 60.0
"""Limit for a rendering. A template cannot sleep, and its CPU time is limited: after this time the machine is stuck."""
ATTEMPTS = 2
"""Another process may have killed this one, so rendering is retried in a second process."""
LAST_BREATH_S = 1.0
"""Time between the end of a process's connection and its exit."""
_MOST_ANSWER_BYTES = 1 << 30
_ONE_READ_BYTES = 256 << 10


class _LostError(Exception):
    """A process exited before it completed a response."""


class _Renderer:
    """One process and the connection to it."""

    def __init__(self, cpu_s: float) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command(cpu_s),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.connection.setblocking(False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame and return the response. Raises: _LostError."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self.connection, LENGTH.pack(len(frame)) + frame)
            got = await self._receive(_ONE_READ_BYTES)  # a short response in one piece
            while len(got) < LENGTH.size:
                got += await self._receive(_ONE_READ_BYTES)
            size = LENGTH.unpack(got[: LENGTH.size])[0]
            parts, missing = [got[LENGTH.size :]], size - (len(got) - LENGTH.size)
            if not 0 < size <= _MOST_ANSWER_BYTES:
                raise _LostError
            while missing > 0:
                parts.append(await self._receive(min(missing, 1 << 20)))
                missing -= len(parts[-1])
            return b"".join(parts)
        except OSError as error:
            raise _LostError from error

    async def _receive(self, most: int) -> bytes:
        part = await asyncio.get_running_loop().sock_recv(self.connection, most)
        if not part:
            raise _LostError
        return part

    def end(self, patience_s: float = 0.0) -> int:
        """Stop the process. Returns: its exit code; below 0 = the signal that killed it, perhaps earlier.

        Args:
            patience_s: how long to wait for the process to exit on its own [s].
        """
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s)
        self._process.kill()
        return self._process.wait()


class TemplatePool:
    """Renders one template in other processes.

    Args:
        cpu_s: CPU time per response, in addition to the time allowed for its size.
    """

    def __init__(self, source: str, cpu_s: float = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._source = marshal.dumps(source)
        self._idle: list[_Renderer] = []
        self._ordinary = TemplateTurns(ORDINARY_PROCESSES, MOST_WAITING_BYTES, PATIENCE_S)
        self._long = TemplateTurns(LONG_PROCESSES, MOST_WAITING_BYTES, PATIENCE_S)
        self._threads = ThreadPoolExecutor(ORDINARY_PROCESSES + LONG_PROCESSES, thread_name_prefix="templates")
        """For blocking operations: starting a process and waiting for its end."""
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end_all, self._idle)

    async def warm(self) -> None:
        """Start a process, so that no request waits for it, and compile the template in it.

        Raises: InvalidRequestError if the template does not compile.
        """
        async with self._ordinary.turn(0), asyncio.timeout(PATIENCE_S):
            self._give(await self._renderer())

    async def render(self, frame: bytes) -> str:
        """The rendered text.

        Args:
            frame: the template's variables, marshalled; plain JSON values.
        Raises: InvalidRequestError when the template refuses them or exceeds its limits; OverloadedError when too many
            requests wait; TimeoutError.
        """
        long = len(frame) >= LONG_BYTES
        turns = self._long if long else self._ordinary
        async with turns.turn(len(frame)), asyncio.timeout(PATIENCE_S):
            for _ in range(ATTEMPTS):
                with contextlib.suppress(_LostError):
                    return await self._render(frame, fresh=long)
        raise refusal(f"{ATTEMPTS} processes were lost over them")

    def close(self) -> None:
        """Stop the idle processes; busy ones stop after their responses."""
        self._end()

    async def _render(self, frame: bytes, *, fresh: bool) -> str:
        renderer = await (self._started() if fresh else self._renderer())
        answer = await self._answer(renderer, frame)
        if fresh:
            self._threads.submit(renderer.end)
        else:
            self._give(renderer)
        return _text(answer)

    async def _renderer(self) -> _Renderer:
        """An idle process, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return await self._started()

    async def _started(self) -> _Renderer:
        """A new process, which has compiled the template."""
        started = self._threads.submit(_Renderer, self._cpu_s)
        try:
            renderer = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(_end_started)
            raise
        answer = await self._answer(renderer, self._source)
        if answer != TEXT:
            self._threads.submit(renderer.end)
            raise refusal(answer[1:].decode("utf-8", "surrogatepass"))
        return renderer

    async def _answer(self, renderer: _Renderer, frame: bytes) -> bytes:
        """Send a request to a process; stop the process if it does not respond.

        Raises: _LostError, InvalidRequestError if the kernel killed it for exceeding its CPU time.
        """
        try:
            return await renderer.ask(frame)
        except _LostError as error:
            ended = self._threads.submit(renderer.end, LAST_BREATH_S)
            if await asyncio.wrap_future(ended) == -signal.SIGPROF:
                raise refusal("it takes too much time") from error
            raise
        except BaseException:  # the caller no longer waits
            self._threads.submit(renderer.end)
            raise

    def _give(self, renderer: _Renderer) -> None:
        with self._lock:
            if self._end.alive:
                self._idle.append(renderer)
                return
        self._threads.submit(renderer.end)


def refusal(reason: str) -> InvalidRequestError:
    """The error for a conversation that a template refuses, or must not render."""
    return InvalidRequestError(f"the chat template refused the messages: {reason}", param="messages")


def _text(answer: bytes) -> str:
    text = answer[1:].decode("utf-8", "surrogatepass")
    if answer[:1] != TEXT:
        raise refusal(text)
    return text


def _end_started(started: "Future[_Renderer]") -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().end()


def _end_all(idle: list[_Renderer]) -> None:
    while idle:
        idle.pop().end()


# Turns at a few processes: a fixed number concurrently, others queue, excess is refused. For any event loop.

MOST_WAITING = 1024


class TemplateTurns:
    """One queue.

    Args:
        most: concurrent turns.
        most_bytes: bytes that may wait; a single request may always wait.
        patience_s: longest wait for a turn.
    """

    def __init__(self, most: int, most_bytes: int, patience_s: float) -> None:
        self._free = most
        self._most_bytes, self._patience_s = most_bytes, patience_s
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def state(self) -> tuple[int, int, int]:
        """Free turns, waiting requests, and their bytes."""
        return self._free, len(self._waiting), self._bytes

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for a turn and take it. Raises: OverloadedError if too much is waiting already; TimeoutError."""
        with self._lock:
            waits = not self._free
            if not waits:
                self._free -= 1
        if waits:
            await self._wait(size)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        place = loop, loop.create_future()
        with self._lock:
            if len(self._waiting) >= MOST_WAITING or (self._bytes and self._bytes + size > self._most_bytes):
                raise OverloadedError("too many conversations are waiting for the chat template", retry_after_s=1.0)
            self._waiting.append(place)
            self._bytes += size
        try:
            async with asyncio.timeout(self._patience_s):
                await place[1]
        except BaseException:
            with self._lock:
                waits = place in self._waiting
                if waits:
                    self._waiting.remove(place)
            if not waits:  # its turn became free at the same moment
                self._leave()
            raise
        finally:
            with self._lock:
                self._bytes -= size

    def _leave(self) -> None:
        """Give the turn to the next waiting request."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    return
                loop, turn = self._waiting.popleft()
            with contextlib.suppress(RuntimeError):  # that loop has been closed in the meantime
                loop.call_soon_threadsafe(_wake, turn)
                return


def _wake(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
