"""`cloudmatrix rm NAME`: delete a model from this user's caches."""

import argparse

DESCRIPTION = """\
Delete a model that was imported or fetched. `cloudmatrix models` lists them. A bundled one, and one that a system of
yours serves now, are not deleted.
"""
EPILOG = """\
Examples:
  cloudmatrix rm smollm2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="as `cloudmatrix models` shows it")


def run(arguments: argparse.Namespace) -> int:
    """Delete the model. Raises: ConfigError if there is none of this name, or it is in use."""
    from serving.cluster.session import running_starts
    from serving.tools.importing.models_here import remove_model

    removed = remove_model(arguments.name, [start.model for start in running_starts()])
    print(f"removed {removed.folder} ({removed.size / 1e6:,.0f} MB)")
    return 0
