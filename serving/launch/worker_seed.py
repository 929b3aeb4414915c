"""A process that has imported what replicas need, and from which Ray's workers on this machine are forked.

Ray starts an interpreter for each worker, which then imports Ray, Serve and our code for one to two seconds. Here the
raylet starts `client` instead. It asks the seed to fork, passes its environment and its files on, and exits:

    raylet --starts--> client --request, files--> seed --forks--> worker, which registers with the raylet

The seed never has a second thread, because it imports modules but connects to nothing; that makes a fork safe. If there
is no seed, if it does not answer, or if Ray asked for another command, the client itself becomes the worker.

The client imports only the standard library, without site packages.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

FORK_DEADLINE_S = 30.0
"""A seed on a busy machine has imported everything by then; half of the time that Ray gives a worker to register."""
REQUEST_DEADLINE_S = 2.0
PRELOADED = (
    "ray._private.async_compat",
    "ray.serve._private.controller",
    "ray.serve._private.replica",
    "serving.launch.app",
    "serving.kvpool.live.pool_control",
    "serving.scaling.live.scaling_board",
)
"""What every worker of a system needs."""
NATIVE, TORCH = "serving.instance.live.compute_native", "serving.instance.live.compute_torch"
"""What an instance that computes needs in addition: on weights of the pool, or that it loads itself."""
LENGTH = struct.Struct("!I")
ENVIRONMENT_OPTION = "--serialized-runtime-env-context="
SETUP, WORKER = "setup_worker.py", "default_worker.py"
"""Ray's scripts: one that sets up a runtime environment, and a Python worker."""
RAYLET = "RAY_RAYLET_PID"
ENVIRONMENT = {
    "RAY_JOB_ID": "ffffffff",  # any job, as Ray's own idle workers
    "OPENBLAS_NUM_THREADS": "1",  # otherwise numpy starts a thread for each core
}
"""Variables of the seed. Ray's C++ code reads its variables once, when it is imported: a raylet's number is not known
then, so that of the launcher, which outlives it, takes its place, and `end_with` ends a worker with its raylet.
"""
RESTART_S = 5.0
"""Time between two restarts of a seed that dies, for example because it cannot import a module."""
QUEUE = 128
"""Clients that may wait while the seed imports."""
_READY, _GO = b"r", b"g"
_PR_SET_PDEATHSIG = 1


class WorkerSeed:
    """The launcher's side: starts the seed, and replaces it when it dies.

    Args:
        folder: of the seed's socket.
        modules: that the seed imports.
    Effects: starts a process, which the kernel kills when the calling thread ends.
    """

    def __init__(self, folder: Path, modules: Sequence[str] = PRELOADED) -> None:
        self._path, self._modules = folder / "workers", modules
        self._process = self._start()
        self._not_before = 0.0

    def _start(self) -> subprocess.Popen[bytes]:
        libc, silent = ctypes.CDLL(None), subprocess.DEVNULL
        self._path.unlink(missing_ok=True)  # of a seed that died
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._path))
        listening.listen(QUEUE)

        def end_with_launcher() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as Ray starts its processes
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        with listening:  # a client is refused at once only when the seed is dead
            return subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(self._path), str(listening.fileno()), *self._modules],
                env={**os.environ, **ENVIRONMENT, RAYLET: str(os.getpid())},
                stdin=silent,
                stdout=silent,
                stderr=silent,
                pass_fds=[listening.fileno()],
                preexec_fn=end_with_launcher,
            )

    @property
    def client(self) -> list[str]:
        """Command before that of a worker, with which the seed forks it."""
        return [sys.executable, "-I", "-S", __file__, str(self._path)]

    def tend(self) -> bool:
        """Restart the process if it has exited; workers start slowly without it. Returns: whether it had.

        Raises: OSError if no process can be started; retry later.
        """
        if self._process.poll() is None or time.monotonic() < self._not_before:
            return False
        self._not_before = time.monotonic() + RESTART_S
        self._process = self._start()
        return True

    def end(self) -> None:
        """Kill the process; its workers continue. Safe to call twice."""
        self._process.kill()
        self._process.wait()


def ask(path: str, command: Sequence[str]) -> bool:
    """Have the seed fork the worker of a command with this process's environment and standard files.

    Returns: whether it runs.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as seed:
        seed.settimeout(FORK_DEADLINE_S)
        seed.connect(path)
        variables = [f"{name}={value}" for name, value in os.environ.items()]
        request = os.fsencode("\0".join([os.getcwd(), str(len(command)), *command, *variables]))
        socket.send_fds(seed, [LENGTH.pack(len(request))], [0, 1, 2])
        seed.sendall(request)
        if seed.recv(1) == _READY:
            seed.sendall(_GO)  # the fork ends without it, so a command never has two workers
            return True
    return False


def client(path: str, command: Sequence[str]) -> None:
    """Have the seed fork this worker, and return; or become it."""
    short = without_setup(command)
    if short is None or not ask(path, short):
        os.execv(command[0], [command[0], *short] if short else list(command))


def without_setup(command: Sequence[str]) -> list[str] | None:
    """Script and arguments of a worker, without Ray's script that sets up a runtime environment.

    Returns: None if the command needs that script or another interpreter, or is none of a Python worker.
    """
    scripts = [part for part in command if part.endswith(".py")]
    known = [Path(part).name for part in scripts] in ([SETUP, WORKER], [WORKER])
    if not known or command[0] != sys.executable or any(part.startswith(ENVIRONMENT_OPTION) for part in command):
        return None
    return [part for part in command[command.index(scripts[-1]) :] if not part.startswith("--language=")]


def serve(listening: socket.socket, modules: Sequence[str]) -> socket.socket:
    """Import modules, then fork a process for every client until this process is killed.

    Returns: the client's connection, in each fork only.
    """
    load(modules)
    if forks_draw_alike():
        raise SystemExit("forks of this process would generate the same IDs; workers start without it")
    gc.collect()
    gc.freeze()  # forks share these objects' pages while nothing writes to them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        connection = listening.accept()[0]
        with contextlib.suppress(OSError):  # no process can be created now: the client becomes the worker
            if os.fork() == 0:
                listening.close()
                return connection
        connection.close()


def load(modules: Sequence[str]) -> None:
    """Import modules without using Ray's random ID generator.

    All forks would inherit its state and produce the same IDs, and a worker crashes when another one has created its
    object ID. At import, Ray generates IDs for actor classes only.
    """
    names = vars(importlib.import_module("ray.actor"))
    drawn = names["ActorClassID"]

    class Fresh:
        """Generates actor class IDs from the kernel's random numbers instead."""

        @staticmethod
        def from_random() -> object:
            return drawn(os.urandom(drawn.size()))

    names["ActorClassID"] = Fresh
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        names["ActorClassID"] = drawn


def forks_draw_alike() -> bool:
    """Whether two forks of this process generate the same ID with Ray's generator."""
    draw, drawn = importlib.import_module("ray").ObjectRef.from_random, []
    for _ in range(2):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, draw().binary())
            os._exit(0)
        os.close(writing)
        drawn.append(os.read(reading, 64))
        os.close(reading)
        os.waitpid(child, 0)
    return drawn[0] == drawn[1]


def become_worker(connection: socket.socket) -> None:
    """Run a client's program in this process, with the client's environment and files.

    Raises: SystemExit if the client has gone, and with the program.
    """
    with connection:
        connection.settimeout(REQUEST_DEADLINE_S)
        try:
            head, files, *_ = socket.recv_fds(connection, LENGTH.size, 3)
            with connection.makefile("rb") as stream:
                folder, count, *texts = os.fsdecode(stream.read(*LENGTH.unpack(head))).split("\0")
            # Ray has given the client a process group, which it kills with the worker, and a score for lack of memory.
            peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            os.setpgid(0, os.getpgid(peer))
            Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{peer}/oom_score_adj").read_text())
            connection.sendall(_READY)
            if connection.recv(1) != _GO:
                raise SystemExit(1)
        except (OSError, ValueError, struct.error):
            raise SystemExit(1) from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    for text in texts[int(count) :]:
        name, _, value = text.partition("=")
        os.environ[name] = value
    if RAYLET in os.environ:
        end_with(int(os.environ[RAYLET]))
    sys.argv = texts[: int(count)]
    sys.path[0] = str(Path(sys.argv[0]).parent)  # as for any script
    runpy.run_path(sys.argv[0], run_name="__main__")


def end_with(raylet: int) -> None:
    """End this process at once when another one ends. Effects: starts a thread, unless that one has ended already."""
    try:
        other = os.pidfd_open(raylet)
    except ProcessLookupError:
        raise SystemExit(1) from None

    def watch() -> None:
        select.select([other], [], [])
        os._exit(1)

    threading.Thread(target=watch, name="raylet", daemon=True).start()


if __name__ == "__main__":
    path, first, *rest = sys.argv[1:]
    if first.isdigit():
        become_worker(serve(socket.socket(fileno=int(first)), rest))
    else:
        client(path, [first, *rest])
