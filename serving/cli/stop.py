"""`cloudmatrix stop`: end a system that `cloudmatrix serve` has started on this machine."""

import argparse

from serving.cli.system_options import add_start_options, start_of

DESCRIPTION = """\
Stop a system that `cloudmatrix serve` started on this machine, in the background or in another terminal. Like Ctrl-C
there, it lets running requests finish first. For a deployment on a running Ray use `cloudmatrix down`.
"""
EPILOG = """\
Examples:
  cloudmatrix stop
  cloudmatrix stop --now       do not wait for requests
"""
WAIT_S = 600.0
"""Longest drain that a configuration is expected to have, and the end of Ray."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--now", action="store_true", help="do not wait for running requests")
    add_start_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """End the system, and wait until it has ended.

    Raises: UnavailableError if none runs, several do, or it has not ended after ten minutes.
    """
    import os
    import signal
    import time
    from pathlib import Path

    from serving.cluster.session import running_starts
    from serving.errors import UnavailableError
    from serving.launch.detached import OUTPUT

    start = start_of(arguments)
    output = Path(f"/proc/{start.pid}/fd/1").resolve()
    os.kill(start.pid, signal.SIGTERM)
    if arguments.now:
        time.sleep(0.2)  # two signals at the same moment are one
        os.kill(start.pid, signal.SIGTERM)
    print(f"stopping {start.gateway_url} ...", flush=True)
    end = time.monotonic() + WAIT_S
    while any(one.pid == start.pid for one in running_starts()):
        if time.monotonic() > end:
            raise UnavailableError(f"it has not ended after {WAIT_S:.0f} s: kill -9 {start.pid} ends it at once")
        time.sleep(0.1)
    if output.name.startswith(OUTPUT):  # of a start in the background; nobody needs it after a wanted end
        output.unlink(missing_ok=True)
    return 0
