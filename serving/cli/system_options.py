"""Options for the running system of a command: its gateway's address and key, or its dashboard's."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.server_address import DEFAULT_URL, KEY_VARIABLE, URL_HELP, key_or_environment, server_address

if TYPE_CHECKING:
    from serving.client.pools_client import PoolsClient
    from serving.cluster.session import RunningStart


def add_gateway_options(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    """Options for the gateway's address and the output format.

    Args:
        inherited: the parent parser has these options too; a value given here overrides one given there.
    """
    add_gateway_address(parser, inherited=inherited)
    json_help = "print JSON instead of a table"
    parser.add_argument("--json", action="store_true", default=_default(False, inherited=inherited), help=json_help)


def add_gateway_address(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    """Options for the gateway's address.

    Args:
        inherited: as for `add_gateway_options`.
    """
    default = _default(None, inherited=inherited)
    parser.add_argument("--url", type=server_address, default=default, help=URL_HELP)
    parser.add_argument(
        "--api-key", metavar="KEY", default=default, help=f"if the gateway requires one (default: ${KEY_VARIABLE})"
    )


def choose_gateway(arguments: argparse.Namespace) -> None:
    """Select the gateway of the system that `system_of` would select, unless `--url` names another; and the key.

    Raises: UnavailableError if several systems of this user run on this machine.
    Effects: sets `arguments.url` and `arguments.api_key`.
    """
    arguments.api_key = key_or_environment(arguments.api_key)
    if arguments.url is None:
        from serving.client.pools_client import only_start
        from serving.cluster.session import running_starts

        start = only_start(running_starts())
        arguments.url = DEFAULT_URL if start is None else start.gateway_url


def add_start_options(parser: argparse.ArgumentParser) -> None:
    """Options that choose one of the systems that run on this machine."""
    parser.add_argument(
        "--url", type=server_address, help="its gateway's address, if several systems of yours run here"
    )


def start_of(arguments: argparse.Namespace) -> "RunningStart":
    """The system on this machine that `--url` names, or the only one.

    Raises: UnavailableError if there is none, or there are several without `--url`.
    """
    from serving.client.pools_client import only_start
    from serving.cluster.session import running_starts
    from serving.errors import UnavailableError

    starts = [one for one in running_starts() if arguments.url in (None, one.gateway_url)]
    if (start := only_start(starts)) is None:
        of_url = f" at {arguments.url}" if arguments.url else ""
        raise UnavailableError(f"no system of yours runs on this machine{of_url}: `cloudmatrix serve` starts one")
    return start


def _default(value: object, *, inherited: bool) -> object:
    return argparse.SUPPRESS if inherited else value


def add_dashboard_options(parser: argparse.ArgumentParser) -> None:
    """Options for the address of the system's dashboard."""
    dashboard_help = "Ray's dashboard (default: of your system here, else $RAY_DASHBOARD_ADDRESS, else port 8265)"
    parser.add_argument("--dashboard", type=server_address, metavar="URL", help=dashboard_help)
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="its token (default: of your system here, else Ray's token of this user)")
    token.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    parser.add_argument("--json", action="store_true", help="print JSON")


def system_of(arguments: argparse.Namespace) -> "PoolsClient":
    """The system that the dashboard's options name.

    Raises: ConfigError (the token's file cannot be read), UnavailableError.
    """
    from hardware.regular_file import read_regular_text
    from serving.client.pools_client import find_system
    from serving.errors import ConfigError

    token = arguments.token
    if arguments.token_file is not None:
        try:
            token = read_regular_text(arguments.token_file).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {arguments.token_file} cannot be read: {error}") from error
    return find_system(arguments.dashboard, token)
