"""`cloudmatrix status`: what a running system has, as a table."""

import argparse

from serving.cli.system_options import add_gateway_options

DESCRIPTION = """\
Ask a running gateway what there is, and print it as a table.
"""
EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gateway_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print.

    Raises: UnavailableError, in one line.
    """
    from serving.cli.status_table import fetch_status, print_status

    print_status(fetch_status(arguments.url, arguments.api_key), as_json=arguments.json)
    return 0
