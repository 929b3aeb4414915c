"""`cloudmatrix serve --detach`: runs the same command in the background and waits until it is ready.

Readiness is reported with systemd's protocol, sd_notify(3): a datagram READY=1 to the socket in NOTIFY_SOCKET.
A systemd unit with Type=notify therefore works as well.
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

from loadgen.exit_codes import ExitCode
from loadgen.server_address import temporary_folder
from serving.terminal import own_command

NOTIFY_SOCKET = "NOTIFY_SOCKET"
OUTPUT = "cloudmatrix-serve-"
"""Prefix of the files that hold the output of background starts."""
_READY = b"READY=1"
_POLL_S = 0.1


def taken_address() -> str | None:
    """The value of NOTIFY_SOCKET, if set. Effects: removes the variable, so that Ray's processes do not inherit it."""
    return os.environ.pop(NOTIFY_SOCKET, None)


def notify_ready(address: str | None) -> None:
    """Report readiness to the parent process or service manager. Errors are ignored.

    Args:
        address: datagram socket, as a path or as `@` and an abstract name; None = no report is wanted.
    """
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.sendto(_READY, f"\0{address[1:]}" if address.startswith("@") else address)


def start_detached() -> int:
    """Run this command again without `--detach` in a new session, and print its output until it is ready.

    Returns: 0 when it is ready; its exit code if it exits first; 130 after Ctrl-C, which stops it.
    Effects: its later output is written to a file in the temporary folder.
    """
    command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--detach")]
    file, name = tempfile.mkstemp(prefix=OUTPUT, suffix=".log", dir=temporary_folder())
    with (
        open(file, "wb") as log,
        open(name, "rb") as shown,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
    ):
        ready.bind("")  # the kernel assigns an abstract name
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
        print(f"In the background, as process {child.pid}; `{own_command()} stop` ends it; its output: {name}")
        return 0
    Path(name).unlink()  # all of it was printed
    return code


def _follow(child: "subprocess.Popen[bytes]", ready: socket.socket, shown: BinaryIO) -> int | None:
    """Print the child's output until it is ready or exits. Returns: its exit code; None if it is ready."""
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
        return ExitCode.INTERRUPTED
