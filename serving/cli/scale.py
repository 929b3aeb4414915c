"""`cloudmatrix scale POOL N`: so many replicas, and how long that stands against the autoscaler."""

import argparse
import json
import time
from pathlib import Path

from hardware.regular_file import read_regular_text
from loadgen.quantities import Duration
from serving.cli.http_question import server_address
from serving.cli.pools_client import PoolsClient, find_system
from serving.errors import ConfigError, ScaleError

WAIT_S = 120.0


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `scale` to the command line."""
    scale = commands.add_parser(
        "scale",
        help="change how many replicas a pool has",
        description="Ask for so many replicas of a pool. What does not fit is refused, with the number that would.",
        epilog="Examples: cloudmatrix scale decode 3; cloudmatrix scale prefill 2 --hold 1h (0 = let go)",
    )
    scale.add_argument("pool", metavar="POOL", help="prefill, decode, aggregated or kvcache")
    scale.add_argument("replicas", metavar="N", type=int, help="replicas")
    scale.add_argument(
        "--hold",
        type=Duration(),
        metavar="T",
        help="how long the autoscaler leaves the pool alone, e.g. 90s, 10m, 2h; 0 = not at all (default: [autoscaler]"
        " manual_hold_s)",
    )
    scale.add_argument("--wait", action="store_true", help="return when they serve, and say how long it took")
    add_dashboard_options(scale)
    scale.set_defaults(run=_run)


def add_dashboard_options(parser: argparse.ArgumentParser) -> None:
    """Where the system's dashboard is."""
    dashboard_help = "Ray's dashboard (default: of your start on this machine)"
    parser.add_argument("--dashboard", type=server_address, metavar="URL", help=dashboard_help)
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="its token (default: as the start left it in its own folder)")
    token.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    parser.add_argument("--json", action="store_true", help="print the raw answer")


def system_of(arguments: argparse.Namespace) -> PoolsClient:
    """The system that these options name.

    Raises: ConfigError (the token's file cannot be read), UnavailableError.
    """
    token = arguments.token
    if arguments.token_file is not None:
        try:
            token = read_regular_text(arguments.token_file).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {arguments.token_file} cannot be read: {error}") from error
    return find_system(arguments.dashboard, token)


def _run(arguments: argparse.Namespace) -> int:
    system = system_of(arguments)
    begun = time.monotonic()
    answer = system.scale(arguments.pool, arguments.replicas, arguments.hold)
    print(json.dumps(answer) if arguments.json else answer["message"], flush=True)
    if arguments.wait:
        if not system.wait(arguments.pool, WAIT_S):
            raise ScaleError(
                f"{arguments.pool} has not {arguments.replicas} serving replicas after {WAIT_S:.0f} s; see the logs",
                kind="unavailable",
            )
        if not arguments.json:
            print(f"{arguments.pool}: {answer['target']} serve after {time.monotonic() - begun:.1f} s")
    return 0
