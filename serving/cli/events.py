"""`cloudmatrix events`: what happened to replicas, as a list that can be followed."""

import argparse

from serving.cli.decisions import add_list_options, print_entries
from serving.cli.system_options import add_dashboard_options

DESCRIPTION = """\
List what happened to replicas (started, died, frozen, replaced, left), oldest first. `cloudmatrix decisions` also lists
changes of pool sizes, with origin and reason.
"""
EPILOG = """\
Examples:
  cloudmatrix events -f
  cloudmatrix events --pool decode --last 5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_list_options(parser)
    add_dashboard_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the recorded events, and with `--follow` later ones.

    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    return print_entries(arguments, decisions=False)
