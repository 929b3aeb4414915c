"""`cloudmatrix models`: the models on this machine that `cloudmatrix serve` takes by name."""

import argparse
import json

DESCRIPTION = """\
List the models on this machine: bundled, imported into your cache, and downloaded from the Hugging Face Hub.
`cloudmatrix serve NAME` serves one, `cloudmatrix pull NAME` downloads one, `cloudmatrix rm NAME` deletes one.
"""
EPILOG = """\
Examples:
  cloudmatrix models
  cloudmatrix models --json | jq -r '.[].name'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the models. Returns: 0."""
    from serving.tools.importing.models_here import models_here

    models = models_here()
    if arguments.json:
        rows = ({"name": one.name, "from": one.origin, "folder": str(one.folder), "bytes": one.size} for one in models)
        print(json.dumps(list(rows), indent=2))
        return 0
    from serving.cli.status_table import plain_table
    from serving.terminal import table_console

    table = plain_table(("name", "from"), ("MB",))
    table.add_column("folder")
    for one in models:
        table.add_row(one.name, one.origin, f"{one.size / 1e6:,.0f}", str(one.folder))
    table_console().print(table)
    return 0
