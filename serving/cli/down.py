"""`cloudmatrix down`: removes the application, its actors and its files from a Ray that keeps running."""

import argparse

from serving.cli.options import add_address, address_of

DESCRIPTION = """\
Remove what `cloudmatrix serve --address` or `serve deploy` has deployed: the application, its named actors, and its
files on every host. Ray keeps running. Stop a local start (`cloudmatrix serve` without --address) with Ctrl-C.
"""
EPILOG = """\
Examples:
  cloudmatrix down --address 10.0.0.1:6379
Exit code 1: a host did not respond and may still have files.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_address(parser, required=True)


def run(arguments: argparse.Namespace) -> int:
    """Remove the deployment. Raises: ConfigError if there is no such Ray."""
    address = address_of(arguments) or "auto"
    from serving.launch.existing import take_down

    return take_down(address)
