"""`cloudmatrix node-env`: what a host needs in its environment before `ray start`."""

import argparse
from pathlib import Path

DESCRIPTION = """\
Print `export` lines for a shell: the environment that every host of a cluster needs before `ray start`, so that the
system runs there as after a local start. They set Ray's token, the priority of workers, how soon dead hosts are
noticed, and the page /pools of the dashboard.
"""
EPILOG = """\
Examples:
  eval "$(cloudmatrix node-env)" && ray start --head --resources='{"NPU": 8, "UB_MEMORY": 1024}'
  cloudmatrix node-env --no-token | sed 's/^export //' >/etc/cloudmatrix.env
"""
_DEFAULT_TOKEN_FILE = Path("~/.ray/auth_token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        default=_DEFAULT_TOKEN_FILE,
        help="file of the token that Ray requires, the same on every host; `ray get-auth-token --generate` creates it"
        f" (default: {_DEFAULT_TOKEN_FILE})",
    )
    token.add_argument("--no-token", action="store_true", help="any client that reaches Ray's ports can then run code")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file whose [health] node_* keys count")


def run(arguments: argparse.Namespace) -> int:
    """Print the lines. Raises: ConfigError if the file cannot be read."""
    from serving.cluster.host_environment import (
        AUTHENTICATION,
        DASHBOARD_SITE,
        TOKEN_FILE,
        export_lines,
        host_environment,
    )
    from serving.config.health import HealthConfig
    from serving.config.load import read_config

    health = HealthConfig()
    if arguments.config is not None:
        health = read_config(arguments.config, own_nodes=False).config.health
    variables = host_environment(health)
    if arguments.no_token:
        variables[AUTHENTICATION] = "disabled"  # otherwise the head uses its user's token, if there is one
    else:
        variables |= {AUTHENTICATION: "token", TOKEN_FILE: str(arguments.token_file.expanduser())}
    variables["PYTHONPATH"] = f"{DASHBOARD_SITE}${{PYTHONPATH:+:$PYTHONPATH}}"
    print(export_lines(variables.items()), end="")
    return 0
