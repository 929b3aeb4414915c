"""Starts the blast server as a process of its own, and surely ends it again."""

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from loadgen.errors import LoadgenError

START_S = 20.0
"""Patience with a busy machine; it takes a fifth of a second on an idle one."""


@dataclass(frozen=True, slots=True)
class BlastServer:
    """A running one. `pid` is its process, for measuring its CPU time or stopping it early."""

    url: str
    port: int
    pid: int
    model: str


@contextlib.contextmanager
def start_blast_server(
    mode: str = "blast",
    *,
    tokens_per_s: float = 50.0,
    ttft_s: float = 0.0,
    lockstep: bool = False,
    stall_at_s: float | None = None,
    stall_for_s: float = 2.0,
    slots: int | None = None,
    burst: int = 1,
    chunk_bytes: int = 250,
    api_key: str = "",
    model: str = "blast",
    core: int | None = None,
) -> Iterator[BlastServer]:
    """A blast server on a free port of this machine, until the context ends.

    Args: see `python -m loadgen.selftest.blast_server --help`; `core` pins it to one core.
    Raises: LoadgenError if it does not start.
    Effects: a child process, stopped on exit from the context; it also ends by itself when this process does.
    """
    options = [
        f"--mode={mode}",
        f"--tokens-per-s={tokens_per_s}",
        f"--ttft-s={ttft_s}",
        f"--stall-for-s={stall_for_s}",
        f"--burst={burst}",
        f"--chunk-bytes={chunk_bytes}",
        f"--model={model}",
    ]
    options += [f"--stall-at-s={stall_at_s}"] if stall_at_s is not None else []
    options += ["--lockstep"] if lockstep else []
    options += [f"--slots={slots}"] if slots is not None else []
    options += [f"--api-key={api_key}"] if api_key else []
    options += [f"--core={core}"] if core is not None else []
    command = [sys.executable, "-m", "loadgen.selftest.blast_server", "--port=0", "--end-with-stdin", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        port = _read_port(process)
        yield BlastServer(f"http://127.0.0.1:{port}", port, process.pid, model)
    finally:
        process.kill()  # it has no data to save
        process.communicate()


def _read_port(process: "subprocess.Popen[bytes]") -> int:
    """The first line of its output, in time.

    Raises: LoadgenError.
    """
    assert process.stdout is not None
    deadline = monotonic() + START_S
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))
        piece = process.stdout.read1() if ready else b""  # type: ignore[attr-defined] # a BufferedReader
        if not piece:
            raise LoadgenError(f"the built-in test server did not start within {START_S:g} s")
        line += piece
    return int(line)
