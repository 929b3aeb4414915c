"""`--set SECTION.KEY=VALUE`, for every command that reads a topology file."""

import argparse


def add_set(parser: argparse._ActionsContainer) -> None:
    """The option, any number of times.

    Effects: `arguments.set` is what was given, for `load_config`.
    """
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="one key in place of the file's, e.g. engine.draft_tokens=3; may be given more than once; every key is in"
        " deploy/README.md",
    )
