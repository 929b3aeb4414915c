"""`--engine NAME|FILE`: the engine whose steps are predicted, in every command that predicts some."""

import argparse
from pathlib import Path


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add the option.

    Effects: `arguments.engine` is the given text, or None.
    """
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="whose steps: an engine that `cloudmatrix cost --list` shows, or a TOML file that `cloudmatrix cost --fit`"
        " wrote (default: CloudMatrix-Infer itself)",
    )


def engine_setting(arguments: argparse.Namespace) -> list[str]:
    """The option as a setting of `[simulation] engine`; a file is relative to the current folder."""
    name: str | None = getattr(arguments, "engine", None)
    if not name:
        return []
    return [f"simulation.engine={Path(name).expanduser().resolve() if name.endswith('.toml') else name}"]
