"""`cloudmatrix status`: the state of a running system, as a table."""

import argparse

from serving.cli.system_options import add_gateway_options, choose_gateway

DESCRIPTION = """\
Print the state of a running system, as reported by a gateway, as a table.
"""
EPILOG = """\
Examples:
  cloudmatrix status
  kill -9 $(cloudmatrix status --pids decode | head -1)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gateway_options(parser)
    parser.add_argument("--pids", metavar="POOL", help="print only the process ids of a pool, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Fetch and print the status.

    Raises: UnavailableError, ConfigError, in one line.
    """
    choose_gateway(arguments)
    from serving.cli.status_table import fetch_status, pids_of, print_status

    status = fetch_status(arguments.url, arguments.api_key)
    if arguments.pids is None:
        print_status(status, as_json=arguments.json)
        return 0
    for pid in pids_of(status, arguments.pids):
        print(pid)
    return 0
