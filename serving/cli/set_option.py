"""`--set SECTION.KEY=VALUE`, and the topology file, for every command that reads one."""

import argparse
from typing import TYPE_CHECKING

from serving.cli.engine_option import engine_setting
from serving.cli.model_option import tell, with_folder

if TYPE_CHECKING:
    from serving.config.inert_rule import Command
    from serving.config.serve import ServeConfig


def add_set(parser: argparse._ActionsContainer, example: str) -> None:
    """Add the option, which may be repeated.

    Args:
        example: a setting with an effect in this command.
    Effects: `arguments.set` has the given texts, for `configured`.
    """
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help=f"one key in place of the file's, e.g. {example}; may be given more than once; every key is in"
        " docs/reference/configuration.md",
    )


def configured(arguments: argparse.Namespace, command: "Command", model: str | None = None) -> "ServeConfig":
    """The configuration of a command line with `--config`, `--set` and `--engine`.

    Args:
        model: as `load_config`.
    Raises: ConfigError, as `load_config` and `check_settings`; errors of `with_folder`.
    Effects: reads the file; lists keys that were set without effect in this command on standard error; downloads a
        model of the Hugging Face Hub, including its weights if the command serves it.
    """
    from serving.config.effects import check_settings, idle_lines
    from serving.config.load import read_config

    settings = [*arguments.set, *engine_setting(arguments)]
    loaded = read_config(arguments.config, model=model, settings=settings, own_nodes=command != "deploy")
    check_settings(loaded, command)
    for line in idle_lines(loaded, command):
        tell(line)
    return with_folder(loaded.config, command)
