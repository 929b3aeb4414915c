"""`cloudmatrix experts`: load, ranks and placement of groups, as tables and a heat map."""

import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from serving.cli.status_table import plain_table
from serving.client.http_client import ask_again, ask_gateway
from serving.terminal import table_console

SHADES = " .:-=+*#%@"
ORDER_DEADLINE_S = 20.0
"""A gateway waits up to 10 s for the group."""
MOST_MOVES = 40
MOST_COLUMNS = 64
"""Columns of a heat map; with more experts a column shows the busiest of several neighbours."""


def fetch_experts(url: str, api_key: str | None) -> dict[str, Any]:
    """Query a gateway, with retries while it is too busy.

    Raises: UnavailableError, in one line.
    """
    return ask_again(lambda: ask_gateway(url, "/experts", api_key))


def order_experts(url: str, api_key: str | None, order: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Send a command to a group of ranks.

    Args:
        fields: of the body; None is omitted.
    Raises: UnavailableError, in one line, also if the order is refused.
    """
    body = {name: value for name, value in fields.items() if value is not None}
    return ask_gateway(url, f"/experts/{order}", api_key, body=body, deadline_s=ORDER_DEADLINE_S)


def print_order(answer: dict[str, Any], *, as_json: bool) -> None:
    """Print the result of a command to standard output."""
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    console = table_console()
    console.print(answer["message"], markup=False, highlight=False, soft_wrap=True)
    moves = [(layer["layer"], move) for layer in answer.get("layers", ()) for move in layer["moves"]]
    if moves:
        table = plain_table((), ("layer", "expert", "from", "to", "slot"))
        for layer, move in moves[:MOST_MOVES]:
            cells = layer, move["expert"], _rank_name(move["from"]), _rank_name(move["to"]), move["slot"]
            table.add_row(*map(str, cells))
        console.print(table)
    if len(moves) > MOST_MOVES:
        console.print(f"and {len(moves) - MOST_MOVES} more", highlight=False)


def print_experts(answer: dict[str, Any], action: str, *, as_json: bool) -> None:
    """Print to standard output.

    Args:
        action: `load`, `ranks`, `placement` or `moves`.
    """
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    console = table_console()
    if not answer["groups"]:
        console.print(_no_group(answer["ep"]), markup=False, soft_wrap=True)
    show: dict[str, Callable[[Console, dict[str, Any]], None]] = {
        "ranks": _ranks,
        "placement": _placement,
        "moves": _moves,
    }
    for group in answer["groups"]:
        console.print(
            f"{group['group']}: {members_shown(group)} of {group['ranks_total']} compute together, "
            f"epoch {group['epoch']}, map {group['map_version']}",
            markup=False,
            highlight=False,
        )
        if group.get("masked_count"):
            console.print(
                f"{group['masked_count']} experts are masked until a replacement has joined: tokens may differ",
                markup=False,
                highlight=False,
            )
        show.get(action, _load)(console, group)


def experts_among(group: dict[str, Any]) -> list[int]:
    """The members that are expert ranks, as far as they have registered."""
    known = {one["rank"] for one in group["ranks"] if one["role"] == "experts"}
    return [rank for rank in group["members"] if rank in known]


def members_shown(group: dict[str, Any]) -> str:
    """The ranks that compute together, by kind if there are two."""
    if not group["expert_ranks"]:
        return f"ranks {','.join(map(str, group['members']))}"
    experts = experts_among(group)
    attention = ",".join(str(rank) for rank in group["members"] if rank not in experts)
    return f"attention ranks {attention} and expert ranks {','.join(map(str, experts))}"


def _no_group(ep: dict[str, int]) -> str:
    wanted = [pool for pool, ranks in ep.items() if ranks > 1]
    if wanted:
        return f"no rank of {', '.join(wanted)} has registered yet: its group is starting, or lost"
    return "ep is 1 everywhere: each instance computes all experts in one process; set `[decode] ep = 2` for a group"


def _load(console: Console, group: dict[str, Any]) -> None:
    balance, rows = group["balancedness"], group["rows"]
    if not sum(group["rank_rows"]):
        console.print("no rows yet")
        return
    worst = min(range(len(balance)), key=balance.__getitem__)
    mean = sum(balance) / len(balance)
    names = group["layer_names"]
    console.print(
        f"balancedness {mean:.2f}, worst layer {worst} ({names[worst]} in the model): {balance[worst]:.2f}",
        highlight=False,
    )
    if rows is None:
        table = plain_table((), ("layer", "in the model", "balancedness"))
        for layer, value in enumerate(balance):
            table.add_row(str(layer), names[layer], f"{value:.2f}")
    else:
        table = plain_table((), ("layer", "in the model", "balancedness"))
        table.add_column(f"rows by expert, 0 to {group['experts'] - 1}", no_wrap=True)
        for layer, value in enumerate(balance):
            table.add_row(str(layer), names[layer], f"{value:.2f}", f"|{heat(rows[layer])}|")
    console.print(table, markup=False)
    if rows is not None:
        console.print(f"shades: '{SHADES}' from no rows to those of the layer's busiest expert", markup=False)
    table = plain_table((), ("busiest: layer", "expert", "rows"))
    for one in group["busiest"]:
        table.add_row(str(one["layer"]), str(one["expert"]), str(one["rows"]))
    console.print(table)


def heat(rows: list[int]) -> str:
    """Rows of one layer's experts in plain characters, at most `MOST_COLUMNS`."""
    wide = -(-len(rows) // MOST_COLUMNS)
    cells = [max(rows[at : at + wide]) for at in range(0, len(rows), wide)]
    most = max(cells)
    return "".join(SHADES[-(-cell * (len(SHADES) - 1) // most)] if most else SHADES[0] for cell in cells)


def _ranks(console: Console, group: dict[str, Any]) -> None:
    kinds = ("role",) if group["expert_ranks"] else ()
    table = plain_table(
        ("rank", *kinds, "state"),
        ("pid", "epoch", "members", "rows sent", "rows computed", "held", "borrowed", "waited", "mostly for", "pace"),
    )
    for one in group["ranks"]:
        rows, rank = group["rank_rows"], one["rank"]
        computed = rows[rank] if rank < len(rows) else 0  # it leaves, and gets no more
        numbers = one["epoch"], _numbers(one["members"]), one["rows_sent"], computed
        cells = one["pid"], *numbers, one["held_count"], one["borrowed_count"], *_waits(group["exchange"], rank)
        role = (one["role"],) if kinds else ()
        table.add_row(f"r{one['rank']}", *role, str(one["state"]), *map(str, cells), _pace(group, rank))
    for rank in group["spares"]:
        table.add_row(f"r{rank}", *["-"] * len(kinds), "spare", *["-"] * 10)
    console.print(table)
    console.print(
        "waited: share of the time of all steps; mostly for: the peer that reported last, and the time [s]; "
        "pace: its experts' time for the same work, of the median rank's",
        markup=False,
        soft_wrap=True,
    )
    _sessions(console, group["exchange"].get("sessions", []))
    for one in group["measures"]:
        what = one["measure"].replace("_", " ")
        console.print(f"{_time_of(one['at_s'])} r{one['rank']} {what}: {one['reason']}", markup=False, highlight=False)


def _sessions(console: Console, sessions: list[dict[str, Any]]) -> None:
    """Mean time of a round by part, of each rank that has asked."""
    for rank, one in enumerate(sessions):
        if rounds := one["rounds"]:
            a2e, experts, e2a = (f"{one[part] / rounds * 1e6:.0f}" for part in ("a2e_s", "experts_s", "e2a_s"))
            text = f"r{rank} sessions, a layer's mean: A2E {a2e} us, experts {experts} us, E2A {e2a} us"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _pace(group: dict[str, Any], rank: int) -> str:
    pace, measure = group["paces"].get(str(rank)), group["treated"].get(str(rank))
    shown = f"{pace:.2f}" if pace is not None else "-"
    return f"{shown}, {measure.replace('_', ' ')}" if measure else shown


def _waits(exchange: dict[str, Any], rank: int) -> tuple[str, str]:
    """Share of its time that a rank waited, and the peer for which it waited most."""
    waited: list[float] = exchange["waited_s"][rank]
    total = sum(waited)
    if not total:
        return "-", "-"
    most = max(range(len(waited)), key=waited.__getitem__)
    return f"{total / (total + exchange['worked_s'][rank]):.0%}", f"r{most}: {waited[most]:.1f}"


def _moves(console: Console, group: dict[str, Any]) -> None:
    if not group["rebalances"]:
        console.print("no expert has been moved since the group's shell started", highlight=False)
        return
    table = plain_table(("rebalanced", "by", "outcome", "why not"), ("layers", "moves", "gain", "seconds"))
    for one in group["rebalances"]:
        by = f"{one['reason']} {one['policy']}".strip()
        seconds = "" if one["seconds"] is None else f"{one['seconds']:.1f}"
        numbers = str(len(one["layers"])), str(one["moves"]), f"{one['gain']:.0%}", seconds
        table.add_row(_time_of(one["at_s"]), by, one["outcome"], one["problem"] or "", *numbers)
    console.print(table, markup=False)
    table = plain_table(("moved", "by"), ("layer", "expert", "from", "to", "slot"))
    for one in group["moves"]:
        cells = one["layer"], one["expert"], _rank_name(one["from"]), _rank_name(one["to"]), one["slot"]
        table.add_row(_time_of(one["at_s"]), one["reason"], *map(str, cells))
    console.print(table, markup=False)


def _time_of(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def _rank_name(rank: int | None) -> str:
    return "model" if rank is None else f"r{rank}"


def _placement(console: Console, group: dict[str, Any]) -> None:
    for one in group["ranks"]:
        console.print(f"r{one['rank']}: {one['held_count']} experts of its own", highlight=False)
        for layer, held in enumerate(one["held"]):
            console.print(f"  layer {layer}: {_numbers(held)}", highlight=False)
        if one["borrowed_count"]:
            named = ", ".join(f"{layer}/{expert}" for layer, expert in one["borrowed"])
            more = ", ..." if one["borrowed_count"] > len(one["borrowed"]) else ""
            console.print(f"  in place of lost ranks (layer/expert): {named}{more}", highlight=False)


def _numbers(of: list[int]) -> str:
    return ",".join(map(str, of))
