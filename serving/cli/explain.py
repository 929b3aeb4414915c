"""`cloudmatrix explain`: timelines of past requests."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.quantities import Duration
from serving.cli.system_options import add_gateway_options, choose_gateway

if TYPE_CHECKING:
    from serving.gateway.core.timeline import RequestTimes

DESCRIPTION = """\
Show where the time of past requests went: parts that sum to the end-to-end time, each measured where it happened, and a
sentence about the largest.
"""
EPILOG = """\
Examples:
  cloudmatrix explain chatcmpl-0f3c…
  cloudmatrix explain --slowest 5 --since 15min
  cloudmatrix explain --failed --html failed.html

ID is the id of a response, or a request's x-request-id. The gateway keeps [gateway] timelines of them, the
slowest (also of each past minute), failed and resumed ones longest; with an API key it shows those of the key's
namespace.
"""
SHOWN = 5
MOST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("request", nargs="?", metavar="ID", help="one request, by its id")
    which.add_argument(
        "--slowest", type=_number, nargs="?", const=SHOWN, metavar="N", help=f"the slowest N (default {SHOWN})"
    )
    which.add_argument(
        "--failed", type=_number, nargs="?", const=SHOWN, metavar="N", help=f"the last N that failed (default {SHOWN})"
    )
    which.add_argument(
        "--resumed", type=_number, nargs="?", const=SHOWN, metavar="N",
        help=f"the last N that continued on another instance (default {SHOWN})",
    )  # fmt: skip
    which.add_argument(
        "--newest", type=_number, nargs="?", const=SHOWN, metavar="N", help=f"the last N (default {SHOWN})"
    )
    parser.add_argument(
        "--since", type=Duration(above_zero=True), metavar="T", help="only requests of the last T, e.g. 15min"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page instead")
    add_gateway_options(parser)


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests: give 1 to {MOST}")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Fetch the timeline, and print or write it.

    Raises: UnavailableError, ConfigError, in one line.
    """
    import msgspec

    from serving.cli.explain_page import explain_page, print_times
    from serving.terminal import write_file

    choose_gateway(arguments)
    found = _found(arguments)
    if arguments.html is not None:
        write_file(arguments.html, explain_page(found).encode())
        print(f"{len(found)} request{'s' * (len(found) != 1)}: {arguments.html}")
    elif arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif not found:
        print("there are none: no such request has finished since the gateways started, or [gateway] timelines is 0")
    else:
        for times in found:
            print_times(times)
    return 0


def _found(arguments: argparse.Namespace) -> list["RequestTimes"]:
    """Timelines of the requested requests. Raises: UnavailableError."""
    import msgspec

    from serving.client.http_client import RefusedError
    from serving.errors import ConfigError, UnavailableError
    from serving.gateway.core.timeline import MOST_ROWS, RequestTimes

    if arguments.request is not None:
        if arguments.since is not None:
            raise ConfigError("--since does not go with the id of a request")
        return [msgspec.convert(_ask(arguments, _path(arguments.request)), RequestTimes)]
    which = next(name for name in ("slowest", "failed", "resumed", "newest") if getattr(arguments, name) is not None)
    number, since = getattr(arguments, which), arguments.since
    rows = _ask(arguments, f"/v1/requests?which={which}&limit={number if since is None else MOST_ROWS}")["data"]
    if since is not None:
        rows = [row for row in rows if row["arrived"] >= time.time() - since]
    found = []
    for row in rows[:number]:
        try:
            found.append(msgspec.convert(_ask(arguments, _path(row["names"][0])), RequestTimes))
        except RefusedError:
            continue  # dropped between the two queries
        except (msgspec.ValidationError, LookupError) as error:
            raise UnavailableError(f"the gateway at {arguments.url} has another version: {error}") from error
    return found


def _path(request_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/requests/{quote(request_id, safe='')}/timeline"


def _ask(arguments: argparse.Namespace, path: str) -> dict[str, Any]:
    from serving.client.http_client import ask_again, ask_gateway

    return ask_again(lambda: ask_gateway(arguments.url, path, arguments.api_key))
