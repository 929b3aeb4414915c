"""`cloudmatrix experts`: load balance of a group's ranks, and placement of its experts."""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.quantities import Duration
from serving.cli.system_options import add_gateway_address, add_gateway_options, choose_gateway
from serving.client.http_client import RefusedError, ask_again, ask_gateway
from serving.errors import ScaleError
from serving.values.pool_kinds import ENGINE_POOLS

DESCRIPTION = """\
Show the experts of a running system's groups of ranks: balancedness by layer (mean over largest of the ranks' rows
under the map in use, 1 = even), the busiest experts, and rows by layer and expert as a heat map.
"""
RESIZE = """\
Change the number of ranks of each group of a pool while it serves. New ranks load their share of the experts in
parallel and join at a step boundary. When a group shrinks, the last ranks transfer their streams, then leave. No
request fails. Groups created later start with `ep` ranks. A group that shrinks keeps the hardware it started with.
Of groups with attention_ranks and expert_ranks, N is the number of attention ranks, which join and leave without a
pause.
"""
SWITCH = """\
Replace the last attention rank of a group with an expert rank, or the reverse, while it serves: the rank transfers its
streams or experts to the others of its kind, then exits, while a rank of the other kind starts and joins. Refused
where it is the only one of its kind.
"""
DRAIN = """\
Replace one rank without a loss, for maintenance: it accepts no new sequences; its streams stay for [engine] drain_s,
then move to other ranks; the others compute its experts; it exits, and another process takes its place. Until then the
group has one rank less.
"""
RECORD = """\
Write a routing trace of a running group: how many rows chose each expert, by layer, source rank and slice of time
([experts] window_s / slices). One JSON value per line; serving/group/core/routing_trace.py documents them. Ctrl-C ends
it and keeps what was received.
"""
TRIAL = """\
Show how evenly each placement policy would spread the rows of a routing trace over a group of another size, or with
more slots: planned on every other slice, judged on the rest. Needs no running system.
"""
EPILOG = """\
Examples:
  cloudmatrix experts
  cloudmatrix experts ranks
  cloudmatrix experts placement --json
  cloudmatrix experts record --out routing.jsonl --duration 10min
  cloudmatrix experts trial routing.jsonl --ranks 8 --redundant 2
  cloudmatrix experts resize decode 4 --wait
  cloudmatrix experts drain decode#k3jx9a.r1 --wait
  cloudmatrix experts resize decode --expert-ranks 2
  cloudmatrix experts switch decode#k3jx9a.r1 experts --wait

resize, drain and switch need one of `[gateway] admin_keys`, where there are keys.
  cloudmatrix experts rebalance --policy global --dry-run
  cloudmatrix experts move 0 3 1     (a copy of expert 3 of layer 0 to rank 1)
"""
POLICIES = ("static", "time_sliced", "hierarchical", "global")
ORDERS = {"rebalance": ("group", "policy", "dry_run"), "move": ("group", "layer", "expert", "rank")}
"""Fields of the body of each order."""
_REBALANCE = "rebalance the experts now"
_MOVE = "bring a copy of an expert to a rank, into a slot that can be spared"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, and the actions with their arguments."""
    add_gateway_options(parser)
    parser.set_defaults(action="load")
    actions = parser.add_subparsers(metavar="ACTION", title="actions", description="without one: show the load")
    for name, text in (
        ("moves", "the latest moves of experts, with reasons and outcomes"),
        ("ranks", "state, epoch, members and rows of each rank, and which rank delays which"),
        ("placement", "experts that each rank holds, by layer"),
    ):
        action = actions.add_parser(name, help=text, description=f"Show {text}.")
        add_gateway_options(action, inherited=True)
        action.set_defaults(action=name)
    _add_orders(actions)
    _add_resize(actions.add_parser("resize", help="give a pool's groups another number of ranks", description=RESIZE))
    _add_traces(actions)
    drain = actions.add_parser("drain", help="replace one rank without a loss", description=DRAIN)
    drain.add_argument("rank", metavar="RANK", help="as `cloudmatrix status` names it, e.g. decode#k3jx9a.r1")
    add_gateway_options(drain, inherited=True)
    drain.add_argument(
        "--wait", action="store_true", help="return when another process has taken its place, and print the duration"
    )
    drain.set_defaults(action="drain")
    switch = actions.add_parser("switch", help="replace a rank with one of the other kind", description=SWITCH)
    switch.add_argument("rank", metavar="RANK", help="the last one of its kind, e.g. decode#k3jx9a.r1")
    switch.add_argument("role", choices=("attention", "experts"), help="of the rank that replaces it")
    add_gateway_options(switch, inherited=True)
    switch.add_argument("--wait", action="store_true", help="show the progress, and return when it has joined")
    switch.set_defaults(action="switch")


def _add_resize(parser: argparse.ArgumentParser) -> None:
    pools = f"{', '.join(ENGINE_POOLS[:-1])} or {ENGINE_POOLS[-1]}"
    parser.add_argument("pool", metavar="POOL", help=f"{pools}; its instances must have ranks")
    parser.add_argument(
        "ranks", metavar="N", type=int, nargs="?", help="ranks of each group, at most [experts] most_ranks"
    )
    parser.add_argument("--expert-ranks", metavar="N", type=int, help="expert ranks of each group that has them")
    parser.add_argument("--wait", action="store_true", help="return when they compute together, and print the duration")
    add_gateway_options(parser, inherited=True)
    parser.set_defaults(action="resize")


def _add_traces(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    record = actions.add_parser("record", help="write a group's routing to a file", description=RECORD)
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="e.g. routing.jsonl")
    record.add_argument(
        "--duration", type=Duration(above_zero=True), metavar="T", help="e.g. 90s; default: until Ctrl-C"
    )
    record.add_argument("--group", metavar="NAME", help="e.g. decode#k3jx9a, where there are several")
    add_gateway_address(record, inherited=True)
    record.set_defaults(action="record")
    trial = actions.add_parser("trial", help="try placement policies on a recorded file", description=TRIAL)
    trial.add_argument("file", type=Path, metavar="FILE", help="of `cloudmatrix experts record`")
    trial.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks of the group to try")
    trial.add_argument("--redundant", type=int, default=1, metavar="N", help="[experts] redundant (default 1)")
    trial.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print balancedness of all layers"
    )
    trial.set_defaults(action="trial")


def _add_orders(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    rebalance = actions.add_parser("rebalance", help=_REBALANCE, description=f"{_REBALANCE}.".capitalize())
    rebalance.add_argument(
        "--policy",
        choices=POLICIES,
        help="place experts by this policy, even without a gain (default: by [experts] policy, if there is a gain)",
    )
    rebalance.add_argument("--dry-run", action="store_true", help="only print what would move")
    move = actions.add_parser("move", help=_MOVE, description=f"{_MOVE}.".capitalize())
    for name, text in (("layer", "layer with experts, from 0"), ("expert", "expert"), ("rank", "rank that gets it")):
        move.add_argument(name, metavar=name.upper(), type=int, help=text)
    for action in (rebalance, move):
        action.add_argument("--group", metavar="NAME", help="e.g. decode#k3jx9a, where there are several")
        add_gateway_options(action, inherited=True)
    rebalance.set_defaults(action="rebalance")
    move.set_defaults(action="move")


def run(arguments: argparse.Namespace) -> int:
    """Fetch and print the tables.

    Raises: UnavailableError, ScaleError, ConfigError, RoutingTraceError, PlacementError, in one line.
    """
    if arguments.action != "trial":
        choose_gateway(arguments)
    if arguments.action in ("resize", "drain", "switch"):
        return _change(arguments)
    if arguments.action in ("record", "trial"):
        return _trace(arguments)
    from serving.cli.experts_table import fetch_experts, order_experts, print_experts, print_order

    if arguments.action in ORDERS:
        fields = {name: getattr(arguments, name) for name in ORDERS[arguments.action]}
        answer = order_experts(arguments.url, arguments.api_key, arguments.action, fields)
        print_order(answer, as_json=arguments.json)
        return 0
    print_experts(fetch_experts(arguments.url, arguments.api_key), arguments.action, as_json=arguments.json)
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from serving.cli.experts_record import print_trial, record

    if arguments.action == "trial":
        print_trial(arguments.file, arguments.ranks, arguments.redundant, as_json=arguments.json)
        return 0
    done = record(arguments.url, arguments.api_key, arguments.out, group=arguments.group, duration_s=arguments.duration)
    print(done)
    return 0


def _change(arguments: argparse.Namespace) -> int:

    url, key = arguments.url, arguments.api_key
    drains = arguments.action == "drain"
    before = process_of(url, key, arguments.rank) if drains and arguments.wait else None
    if drains:
        answer = drain_rank(url, key, arguments.rank)
    elif arguments.action == "switch":
        answer = switch_rank(url, key, arguments.rank, arguments.role)
    else:
        answer = resize_groups(url, key, arguments.pool, arguments.ranks, arguments.expert_ranks)
    print(json.dumps(answer) if arguments.json else "\n".join(one["message"] for one in answer["groups"]), flush=True)
    if not arguments.wait:
        return 0
    if drains:
        done = f"{arguments.rank}: another process has taken its place"
        took_s = wait_for_replacement(url, key, arguments.rank, before)
    elif arguments.action == "switch":
        done = f"{arguments.rank} has been replaced"
        took_s = wait_for_size(url, key, answer, show=None if arguments.json else partial(print, flush=True))
    else:
        sizes = " + ".join(str(one) for one in answer["groups"][0]["sizes"])
        done = f"{arguments.pool}: groups of {sizes} compute together"
        took_s = wait_for_size(url, key, answer)
    if not arguments.json:
        print(f"{done} after {took_s:.1f} s")
    return 0


# `cloudmatrix experts resize` and `drain`: groups of ranks grow, shrink and replace a rank while they serve.

DEADLINE_S = 20.0
"""Longer than a gateway's wait for a group's shell."""
WAIT_S = 300.0
POLL_S = 0.5


def resize_groups(
    url: str, api_key: str | None, pool: str, ranks: int | None, expert_ranks: int | None = None
) -> dict[str, Any]:
    """Set the number of ranks of each group of a pool; None = unchanged.

    Raises: UnavailableError, in one line; ScaleError if they do not fit.
    """
    try:
        given = {"ranks": ranks, "expert_ranks": expert_ranks}
        body = {"pool": pool, **{name: value for name, value in given.items() if value is not None}}
        return ask_gateway(url, "/experts/resize", api_key, body=body, deadline_s=DEADLINE_S)
    except RefusedError as error:
        if error.error.get("code") == "no_room":
            raise ScaleError(str(error.error["message"]), kind="no_room") from error
        raise


def drain_rank(url: str, api_key: str | None, rank: str) -> dict[str, Any]:
    """Replace a rank without a loss.

    Raises: UnavailableError, in one line.
    """
    return ask_gateway(url, "/experts/drain", api_key, body={"rank": rank}, deadline_s=DEADLINE_S)


def switch_rank(url: str, api_key: str | None, rank: str, role: str) -> dict[str, Any]:
    """Replace a rank with one of another role.

    Raises: UnavailableError, in one line.
    """
    return ask_gateway(url, "/experts/switch", api_key, body={"rank": rank, "role": role}, deadline_s=DEADLINE_S)


def wait_for_size(
    url: str,
    api_key: str | None,
    answer: dict[str, Any],
    wait_s: float = WAIT_S,
    show: Callable[[str], None] | None = None,
) -> float:
    """Wait until groups have the requested sizes.

    Args:
        answer: of `resize_groups` or `switch_rank`.
        show: gets a line whenever the members of a group have changed.
    Returns: duration of the wait [s].
    Raises: ScaleError if it takes too long; UnavailableError.
    """
    from serving.cli.experts_table import members_shown

    wanted = {one["group"]: one["sizes"] for one in answer["groups"]}
    shown: dict[str, str] = {}

    def done() -> bool:
        seen = {one["group"]: one for one in _groups(url, api_key) if one["group"] in wanted}
        for group, state in seen.items():
            line = f"{group}: {members_shown(state)} compute together"
            if show is not None and shown.get(group) != line:
                show(line)
            shown[group] = line
        return all(group in seen and _sizes(seen[group]) == sizes for group, sizes in wanted.items())

    return _wait(done, "the groups have not got their size", wait_s)


def _sizes(group: dict[str, Any]) -> list[int]:
    """Members by kind: all, or attention ranks and expert ranks."""
    from serving.cli.experts_table import experts_among

    if not group["expert_ranks"]:
        return [len(group["members"])]
    experts = experts_among(group)
    return [len(group["members"]) - len(experts), len(experts)]


def process_of(url: str, api_key: str | None, rank: str) -> int | None:
    """Process id of a rank; None if there is no rank of that name. Raises: UnavailableError, in one line."""
    return next(
        (one["pid"] for group in _groups(url, api_key) for one in group["ranks"] if one["replica"] == rank), None
    )


def wait_for_replacement(
    url: str, api_key: str | None, rank: str, drained: int | None, wait_s: float = WAIT_S
) -> float:
    """Wait until another process has replaced a draining rank in its group.

    Args:
        drained: process id of the drained rank, see `process_of`.
    Returns: duration of the wait [s].
    Raises: ScaleError if it takes too long; UnavailableError.
    """

    def done() -> bool:
        return any(
            one["replica"] == rank and one["pid"] != drained and one["rank"] in group["members"]
            for group in _groups(url, api_key)
            for one in group["ranks"]
        )

    return _wait(done, f"no other process has taken the place of {rank}", wait_s)


def _groups(url: str, api_key: str | None) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = ask_again(lambda: ask_gateway(url, "/experts", api_key))["groups"]
    return groups


def _wait(done: Callable[[], bool], problem: str, wait_s: float) -> float:
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > wait_s:
            raise ScaleError(f"{problem} after {wait_s:.0f} s; see the logs", kind="unavailable")
        time.sleep(POLL_S)
    return time.monotonic() - begun
