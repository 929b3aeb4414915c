"""Options that several commands share: configuration, engine, model, trace, address of a Ray."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from serving.config.inert_rule import Command
    from serving.config.serve import ServeConfig


# `--set SECTION.KEY=VALUE`, and the topology file, for every command that reads one.


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
        help=f"set one key, instead of the file's value, e.g. {example}; may be repeated; every key is in"
        " docs/reference/configuration.md",
    )


def configured(arguments: argparse.Namespace, command: "Command", model: str | None = None) -> "ServeConfig":
    """The configuration of a command line with `--config`, `--set` and `--engine`.

    Args:
        model: as `load_config`.
    Raises: ConfigError, as `load_config` and `check_settings`; errors of `with_folder`.
    Effects: reads the file; lists keys that were set without effect in this command, or are rounded, on standard error;
        downloads a model of the Hugging Face Hub, including its weights if the command serves it.
    """
    from serving.config.effects import check_settings, idle_lines, rounded_lines
    from serving.config.load import read_config

    settings = [*arguments.set, *engine_setting(arguments)]
    loaded = read_config(arguments.config, model=model, settings=settings, own_nodes=command != "deploy")
    check_settings(loaded, command)
    for line in (*idle_lines(loaded, command), *rounded_lines(loaded, command)):
        tell(line)
    return with_folder(loaded.config, command)


# `--engine NAME|FILE`: the engine whose steps are predicted, in every command that predicts some.


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add the option.

    Effects: `arguments.engine` is the given text, or None.
    """
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="engine whose step times are predicted: a name that `cloudmatrix cost --list` shows, or a TOML file that"
        " `cloudmatrix cost --fit` wrote (default: CloudMatrix-Infer itself)",
    )


def engine_setting(arguments: argparse.Namespace) -> list[str]:
    """The option as a setting of `[simulation] engine`; a file is relative to the current folder."""
    name: str | None = getattr(arguments, "engine", None)
    if not name:
        return []
    return [f"simulation.engine={Path(name).expanduser().resolve() if name.endswith('.toml') else name}"]


# Models on a command line: folders, or models of the Hugging Face Hub, which are downloaded first.


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


# Flags of `simulate` and `plan` for a trace, in the same words.


def add_block_tokens(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--block-tokens`."""
    group.add_argument(
        "--block-tokens",
        type=int,
        metavar="N",
        help="tokens per id in the trace's hash_ids (default: that of its format: Mooncake 512, "
        "Bailian 16); checked against the lengths",
    )


def add_columns(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--columns`."""
    group.add_argument(
        "--columns",
        metavar="KEY=NAME,...",
        help="the trace is CSV with columns of these names: timestamp=NAME,input=NAME,output=NAME: arrival (dates, or "
        "numbers of unit=s, ms, us or ns; default s), tokens of prompt and response (default: by its first line)",
    )


def add_concurrency(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--concurrency`."""
    group.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="closed loop: N requests at a time, in order; the next is sent when one has finished; arrival times are "
        "ignored",
    )


# `--address`: an existing Ray, for every command that connects to one.

OWN = "local"
"""A Ray of one's own, as for Ray itself."""


def add_address(parser: argparse.ArgumentParser, *, required: bool = False, absent: str = "a Ray of its own") -> None:
    """Add the option.

    Args:
        required: if false, the default is RAY_ADDRESS, or no address.
        absent: what the command uses without an address.
    """
    default = f"RAY_ADDRESS, else {'that of this host' if required else absent}"
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="auto" if required else None,
        help=f"head of a running Ray, or `auto` for that of this host (default: {default})",
    )


def address_of(arguments: argparse.Namespace) -> str | None:
    """The given address, or that of Ray's own variable; None for a Ray of one's own."""
    from serving.cluster.host_environment import ADDRESS, value_here

    address: str = arguments.address or value_here(ADDRESS)
    return None if address in ("", OWN) else address
