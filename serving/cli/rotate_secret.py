"""`cloudmatrix rotate-secret`: a new secret for the sockets of a running system, without a restart."""

import argparse

from serving.cli.options import add_address, address_of

DESCRIPTION = """\
Give a system on a running Ray (`cloudmatrix serve --address`, `serve deploy`) a new secret. Its processes use it within
10 s, and still accept the previous one; existing connections stay open. --forget-old stops accepting the previous one.
"""
EPILOG = """\
Examples:
  cloudmatrix rotate-secret --address auto
  cloudmatrix rotate-secret --address auto --forget-old     half a minute later, or after a leak at once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_address(parser, required=True)
    parser.add_argument("--forget-old", action="store_true", help="make no new secret; accept only the current one")


def run(arguments: argparse.Namespace) -> int:
    """Rotate the secret. Raises: ConfigError if there is no such Ray, or no system on it; SilentError."""
    address = address_of(arguments) or "auto"
    from serving.launch.existing import rotate_secret

    return rotate_secret(address, forget_old=arguments.forget_old)
