"""A system of the command's own: `cloudmatrix serve` in a process group of its own, stopped with the run."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from serving.cluster.session import folder_of
from serving.errors import UnavailableError
from serving.tools.chaos.targets import PROC, replica_processes, segments, start_ticks

START_S = 240.0
STOP_S = 40.0
LEFT_S = 10.0
"""Time for processes to end after the signal."""
_BANNER = "Ctrl-C ends everything"
_SECRETS = re.compile(r"dashboard token +\S+|#once=\S+")


class OwnSystem:
    """Starts in `with`, stops with it. The error of a failed start has the end of its output.

    Args:
        keys: an administrator's API key and another tenant's, instead of those of the configuration.
    """

    def __init__(self, config: Path, *, stop_s: float = STOP_S, keys: tuple[str, str] | None = None) -> None:
        self.url = ""
        self.left: list[str] = []
        """Processes that had to be killed at the end."""
        self._config = config
        self._keys = keys
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None
        fd, path = tempfile.mkstemp(prefix="cloudmatrix-chaos-", suffix=".log")
        os.close(fd)
        self._out = Path(path)

    def __enter__(self) -> Self:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "serving.cli", "serve", "--config", str(self._config), "--port", str(port)]
        command += ["--host", "127.0.0.1", "--drain", "0"]
        if self._keys is not None:
            # Every user that can list processes sees them; a system without keys is open to all.
            command += ["--set", f'gateway.admin_keys=["{self._keys[0]}"]', "--api-key", self._keys[1]]
        with self._out.open("wb") as out:
            # Its own session: Ctrl-C at the terminal is for the run, which ends with a report and then ends this.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it like Ctrl-C.

        Effects: its processes have ended, or were killed after `stop_s`, or immediately when this is interrupted; those
            that did not end by themselves are in `left`.
        """
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._stop_s)
            deadline = time.monotonic() + LEFT_S
            while _members(process.pid) - {process.pid} and process.poll() is not None and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            self.left = [f"after the end: process {pid} of the system" for pid in sorted(_members(process.pid))]
            for pid in _members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            self._out.unlink(missing_ok=True)

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while _BANNER not in (text := self._out.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                shown = " ".join(_SECRETS.sub("", text).split())[-400:]
                raise UnavailableError(f"the system of {self._config} did not start: {shown or 'it said nothing'}")
            time.sleep(0.1)


def _members(leader: int) -> set[int]:
    """Processes of a POSIX session, its leader among them."""
    found = set()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and start_ticks(int(entry.name)) is not None:
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == leader:
                    found.add(int(entry.name))
    return found


def keep_logs(session: str, folder: Path) -> None:
    """Copy the logs of a session's replicas before they are removed with the session.

    Effects: fills the folder; no effect if the logs are in another place.
    """
    logs = folder_of(session) / "ray" / "session_latest" / "logs" / "serve"
    if logs.is_dir():
        shutil.copytree(logs, folder, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def left_after(session: str, patience_s: float = LEFT_S) -> list[str]:
    """Remains of an ended system on this machine. Waits briefly for the last processes."""
    deadline = time.monotonic() + patience_s
    while True:
        left = [f"after the end: replica process {pid}" for pid in replica_processes(session)]
        left += [f"after the end: UB segment {name}" for name in segments(session)]
        folder = folder_of(session)
        left += [f"after the end: folder {folder}"] if folder.exists() else []
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
