"""Options for the running system of a command: its gateway's address and key, or its dashboard's."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from serving.client.http_client import server_address

if TYPE_CHECKING:
    from serving.client.pools_client import PoolsClient

DEFAULT_URL = "http://127.0.0.1:8000"


def add_gateway_options(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    """Options for the gateway's address and the output format.

    Args:
        inherited: the parent parser has these options too; a value given here overrides one given there.
    """
    add_gateway_address(parser, inherited=inherited)
    json_help = "print the raw numbers instead of a table"
    parser.add_argument("--json", action="store_true", default=_default(False, inherited=inherited), help=json_help)


def add_gateway_address(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    """Options for the gateway's address.

    Args:
        inherited: as for `add_gateway_options`.
    """
    url_help = (
        f"the gateway's address, with or without http:// (default: of your start on this machine, else {DEFAULT_URL})"
    )
    default = _default(None, inherited=inherited)
    parser.add_argument("--url", type=server_address, default=default, help=url_help)
    parser.add_argument("--api-key", metavar="KEY", default=default, help="if the gateway requires one")


def choose_gateway(arguments: argparse.Namespace) -> None:
    """Select the gateway of the system that `system_of` would select, unless `--url` names another.

    Raises: UnavailableError if several systems of this user run on this machine.
    Effects: sets `arguments.url`.
    """
    if arguments.url is None:
        from serving.client.pools_client import only_start
        from serving.cluster.session import running_starts

        start = only_start(running_starts())
        arguments.url = DEFAULT_URL if start is None else start.gateway_url


def _default(value: object, *, inherited: bool) -> object:
    return argparse.SUPPRESS if inherited else value


def add_dashboard_options(parser: argparse.ArgumentParser) -> None:
    """Options for the address of the system's dashboard."""
    dashboard_help = (
        "Ray's dashboard (default: of your start on this machine, else $RAY_DASHBOARD_ADDRESS, else port 8265)"
    )
    parser.add_argument("--dashboard", type=server_address, metavar="URL", help=dashboard_help)
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token", help="its token (default: as the start left it in its own folder, else Ray's own of this user)"
    )
    token.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    parser.add_argument("--json", action="store_true", help="print the raw answer")


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
