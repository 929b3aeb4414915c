"""`cloudmatrix experts`: how evenly a group's ranks are loaded, and where its experts lie."""

import argparse

from serving.cli.system_options import add_gateway_options

DESCRIPTION = """\
Show the experts of a running system's groups of ranks: balancedness by layer (mean over largest of the ranks' rows
under the map in use, 1 = even), the busiest experts, and rows by layer and expert as a heat map.
"""
EPILOG = """\
Examples:
  cloudmatrix experts
  cloudmatrix experts ranks
  cloudmatrix experts placement --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, and the actions with theirs."""
    add_gateway_options(parser)
    parser.set_defaults(action="load")
    actions = parser.add_subparsers(metavar="ACTION", title="actions", description="without one: show the load")
    for name, text in (
        ("ranks", "state, epoch, members and rows of each rank, and who keeps whom waiting"),
        ("placement", "experts that each rank holds, by layer"),
    ):
        action = actions.add_parser(name, help=text, description=f"Show {text}.")
        add_gateway_options(action, inherited=True)
        action.set_defaults(action=name)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print.

    Raises: UnavailableError, in one line.
    """
    from serving.cli.experts_table import fetch_experts, print_experts

    print_experts(fetch_experts(arguments.url, arguments.api_key), arguments.action, as_json=arguments.json)
    return 0
