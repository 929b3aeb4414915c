"""`cloudmatrix serve --detach`: the same command in the background, and how it says that it serves.

It says so as to systemd: a datagram READY=1 to the socket that NOTIFY_SOCKET names (sd_notify(3)), so that a unit of
Type=notify works, too.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from serving.cluster.session import temporary_folder

NOTIFY_SOCKET = "NOTIFY_SOCKET"
OUTPUT = "cloudmatrix-serve-"
"""Begin of the names of files with the output of starts in the background."""
_READY = b"READY=1"
_POLL_S = 0.1


def taken_address() -> str | None:
    """The socket of whoever started this process. Effects: removes the variable: Ray's processes must not use it."""
    return os.environ.pop(NOTIFY_SOCKET, None)


def notify_ready(address: str | None) -> None:
    """Tell who started this process that it serves.

    Args:
        address: of a datagram socket: a path, or a name after `@`; None = nobody asked.
    """
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.sendto(_READY, f"\0{address[1:]}" if address.startswith("@") else address)


def start_detached() -> int:
    """Start this command again without `--detach`, in a session of its own; show its output until it serves.

    Returns: 0 once it serves; its exit code if it ended before; 130 after Ctrl-C, which ends it.
    Effects: its output goes on into a file of the temporary folder.
    """
    command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--detach")]
    file, name = tempfile.mkstemp(prefix=OUTPUT, suffix=".log", dir=temporary_folder())
    with (
        open(file, "wb") as log,
        open(name, "rb") as shown,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
    ):
        ready.bind("")  # the kernel chooses an abstract name, which needs no file
        environment = {**os.environ, NOTIFY_SOCKET: "@" + ready.getsockname()[1:].decode()}
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        code = _follow(child, ready, shown)
    if code is None:
        print(f"In the background, as process {child.pid}; `cloudmatrix stop` ends it; its output: {name}")
        return 0
    Path(name).unlink()  # it has been shown whole
    return code


def _follow(child: "subprocess.Popen[bytes]", ready: socket.socket, shown: BinaryIO) -> int | None:
    """Print what a child writes until it serves or ends. Returns: its exit code; None if it serves."""
    try:
        while True:
            ended = child.poll()
            serves = bool(select.select([ready], [], [], 0 if ended is not None else _POLL_S)[0])
            if text := shown.read().decode(errors="replace"):
                print(text, end="", flush=True)
            if serves and ready.recv(64) == _READY:
                return None
            if ended is not None:
                return ended
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        child.wait()
        print(shown.read().decode(errors="replace"), end="")
        return 130
