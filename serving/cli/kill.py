"""`cloudmatrix kill POOL|REPLICA`: let a replica die, to see what happens."""

import argparse

from loadgen.server_address import KEY_VARIABLE, key_or_environment
from serving.cli.system_options import add_start_options, start_of

DESCRIPTION = """\
Kill the process of a replica without warning, as a fault would. Its streams continue on another replica, token for
token, and Ray starts a new one. `cloudmatrix chaos` does this at random and checks every response.
"""
EPILOG = """\
Examples:
  cloudmatrix kill decode              the first replica of the pool
  cloudmatrix kill decode --signal STOP    freeze it; --signal CONT continues it
  cloudmatrix kill abcdefgh            by the name that `cloudmatrix status` shows
"""
SIGNALS = ("KILL", "STOP", "CONT", "TERM")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("target", metavar="POOL|REPLICA", help="as `cloudmatrix status` shows it")
    parser.add_argument("--signal", choices=SIGNALS, default="KILL", help="which signal (default KILL)")
    parser.add_argument("--api-key", metavar="KEY", help=f"if the gateway requires one (default: ${KEY_VARIABLE})")
    add_start_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send the signal.

    Raises: ConfigError if there is no such pool or replica, or it has just died; UnavailableError if no system runs.
    """
    import os
    import signal

    from serving.cli.status_table import fetch_status, process_of
    from serving.errors import ConfigError

    status = fetch_status(start_of(arguments).gateway_url, key_or_environment(arguments.api_key))
    name, pid = process_of(status, arguments.target)
    try:
        os.kill(pid, signal.Signals[f"SIG{arguments.signal}"])
    except ProcessLookupError:
        raise ConfigError(f"{name} is dead already, see `cloudmatrix status`") from None
    print(f"{name}: SIG{arguments.signal} to process {pid}")
    return 0
