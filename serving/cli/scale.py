"""`cloudmatrix scale POOL N`: set the number of replicas, and for how long it overrides the autoscaler."""

import argparse
import json
import time

from loadgen.quantities import Duration
from serving.cli.system_options import add_dashboard_options, system_of
from serving.errors import ScaleError
from serving.values.pool_kinds import ENGINE_POOLS
from serving.values.scaling_operations import ScalePool

DESCRIPTION = """\
Request a number of replicas of a pool. A number that does not fit is refused, with the largest one that does.
"""
EPILOG = """\
Examples:
  cloudmatrix scale decode 3
  cloudmatrix scale prefill 2 --hold 1h     (0 = let go)
"""
WAIT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("pool", metavar="POOL", help=f"{', '.join(ENGINE_POOLS)} or kvcache")
    parser.add_argument("replicas", metavar="N", type=int, help="replicas")
    parser.add_argument(
        "--hold",
        type=Duration(),
        metavar="T",
        help="how long the autoscaler leaves the pool alone, e.g. 90s, 10m, 2h; 0 = not at all (default: [autoscaler]"
        " manual_hold_s)",
    )
    parser.add_argument("--wait", action="store_true", help="return when they serve, and print the duration")
    add_dashboard_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Request the replicas, and wait for them if requested.

    Raises: ConfigError, ScaleError, UnavailableError in one line.
    """
    system = system_of(arguments)
    begun = time.monotonic()
    answer = system.scale(ScalePool(arguments.pool, arguments.replicas, arguments.hold, "cli"))
    print(json.dumps(answer) if arguments.json else answer["message"], flush=True)
    if arguments.wait:
        if not system.wait(arguments.pool, WAIT_S, answer["target"]):
            waited_s = time.monotonic() - begun
            raise ScaleError(
                f"{arguments.pool} has not {arguments.replicas} serving replicas after {waited_s:.0f} s;"
                " see `cloudmatrix decisions`, and the logs",
                kind="unavailable",
            )
        if not arguments.json:
            print(f"{arguments.pool}: {answer['target']} serve after {time.monotonic() - begun:.1f} s")
    return 0
