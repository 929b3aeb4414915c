"""Models on a command line: folders, or models of the Hugging Face Hub, which are downloaded first."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from serving.config.inert_rule import Command
    from serving.config.serve import ServeConfig


def tell(line: str) -> None:
    """Print a note alongside a command's output. Effects: standard error."""
    print(f"cloudmatrix: {line}", file=sys.stderr, flush=True)


def folder_of(text: str, part: Literal["config", "all"] = "all") -> Path:
    """The model's folder.

    Args:
        part: required part of a Hub model.
    Raises, Effects: as `model_folder`; SIGTERM ends a download as Ctrl-C does.
    """
    from serving.model.hub_model import model_folder
    from serving.terminal import endings_as_interrupt

    with endings_as_interrupt():
        return model_folder(text, tell, part)


def with_folder(config: "ServeConfig", command: "Command") -> "ServeConfig":
    """The configuration with its model's folder.

    Args:
        command: the command that reads it; only those that serve need the weights.
    Raises, Effects: as `with_model_folder`; SIGTERM ends a download as Ctrl-C does.
    """
    if config.model.hub is None:
        return config
    from serving.model.hub_model import with_model_folder
    from serving.terminal import endings_as_interrupt

    with endings_as_interrupt():
        if command not in ("serve", "deploy"):
            return with_model_folder(config, tell, weights=False)
        from serving.launch.preflight import check_before_fetch

        return with_model_folder(config, tell, check=partial(check_before_fetch, own_ray=command == "serve"))
