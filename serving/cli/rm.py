"""`cloudmatrix rm NAME`: delete a model from this user's caches."""

import argparse

DESCRIPTION = """\
Delete an imported or downloaded model; `cloudmatrix models` lists them. Bundled models, and models that a system of
yours is serving, are refused.
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
