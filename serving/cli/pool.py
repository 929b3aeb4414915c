"""`cloudmatrix pool`: the KV-cache pool of a running system: show, audit, delete, quotas."""

import argparse
from collections.abc import Callable
from typing import Any

from loadgen.exit_codes import ExitCode
from loadgen.quantities import Size
from serving.cli.system_options import add_gateway_options, choose_gateway

DESCRIPTION = """\
Show the KV-cache pool of a running system: each memory server's share of the ring and of new blocks (weight), how full
its memory and its SSD tier are, the hits, and the usage of each namespace.
"""
EPILOG = """\
With a tenant's key you see that tenant's namespace; with one of `[gateway] admin_keys`, or on a server without keys,
all.

Examples:
  cloudmatrix pool --json
  cloudmatrix pool audit
  cloudmatrix pool forget acme
  cloudmatrix pool sessions
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, and the actions with their arguments."""
    add_gateway_options(parser)
    parser.set_defaults(action="show")
    actions = parser.add_subparsers(metavar="ACTION", title="actions", description="without one: show the pool")
    audit = actions.add_parser(
        "audit",
        help="prove that ledgers, memory and SSD folders agree",
        description="Let every memory server compare its ledger, the bytes in memory and its SSD folder.",
        epilog="Exit code 1: a difference was found, or a server did not respond.",
    )
    audit.add_argument("--repair", action="store_true", help="remove what is wrong; it will be computed again")
    forget = actions.add_parser(
        "forget",
        help="delete a namespace's cache",
        description="Delete all blocks of a namespace from the pool. Requests under way compute again what they miss.",
    )
    forget.add_argument("namespace", metavar="NAMESPACE", help="whose cache; needs its key, or an admin key")
    quota = actions.add_parser(
        "quota",
        help="change a namespace's quota and weight while the system runs",
        description="Change what a namespace may hold, and its share where requests wait; needs an admin key.",
        epilog="The change overrides the configuration file until the file changes for this namespace.",
    )
    quota.add_argument("namespace", metavar="NAMESPACE", help="whose quota")
    quota.add_argument(
        "--mib",
        type=Size("MiB"),
        metavar="SIZE",
        help="most that it may hold, memory and SSD together, e.g. 512 (MiB) or 2GiB; 0 = no limit",
    )
    quota.add_argument(
        "--weight", type=float, metavar="X", help="of each of its keys where requests wait for their turn"
    )
    sessions = actions.add_parser(
        "sessions",
        help="list the sessions whose prompts are kept",
        description="List the sessions that the pool keeps blocks of: branches, memory, time left, last outcome.",
    )
    sessions.add_argument("--namespace", metavar="NAME", help="of which tenant; default: that of the API key")
    for name, action in (("audit", audit), ("forget", forget), ("quota", quota), ("sessions", sessions)):
        add_gateway_options(action, inherited=True)
        action.set_defaults(action=name)


def run(arguments: argparse.Namespace) -> int:
    """Run one action.

    Returns: 1 if an audit has findings.
    Raises: UnavailableError, in one line.
    """
    from serving.cli import pool_table as pool

    choose_gateway(arguments)
    url, key, code = arguments.url, arguments.api_key, ExitCode.OK
    show: Callable[[dict[str, Any]], None]
    match arguments.action:
        case "audit":
            answer, show = pool.audit_pool(url, key, repair=arguments.repair), pool.print_audit
            code = ExitCode.OK if answer["ok"] else ExitCode.FAILURE
        case "forget":
            answer, show = pool.forget_namespace(url, key, arguments.namespace), pool.print_forgotten
        case "quota":
            answer = pool.set_quota(url, key, arguments.namespace, arguments.mib, arguments.weight)
            show = pool.print_quota
        case "sessions":
            answer, show = pool.fetch_sessions(url, key, arguments.namespace), pool.print_sessions
        case _:
            answer, show = pool.fetch_pool(url, key), pool.print_pool
    (pool.print_json if arguments.json else show)(answer)
    return code
