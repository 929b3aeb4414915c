"""`cloudmatrix status`: a gateway's state as tables, with functions that `cloudmatrix pool` uses too."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from hardware.units import MIB
from serving.client.http_client import ask_again, ask_gateway
from serving.errors import ConfigError
from serving.terminal import table_console
from serving.values.group import RankRole
from serving.values.instances import whole_replicas

NAME_WIDTH = 14
SILENT_S = 10.0
"""Longer than a board's restart."""

_LOST = ("dead", "frozen")

Cell = Callable[[dict[str, Any]], str]


def fetch_status(url: str, api_key: str | None) -> dict[str, Any]:
    """Query a gateway, with retries while it is too busy.

    Raises: UnavailableError, in one line, when it cannot be reached, rejects the key, or is not a gateway.
    """
    return ask_again(lambda: ask_gateway(url, "/cluster", api_key))


def print_status(status: dict[str, Any], *, as_json: bool) -> None:
    """Print to standard output."""
    if as_json:
        print(json.dumps(status, indent=2))
        return
    console = table_console()
    npus, gateway, count = status["npus"], status["gateway"], status.get("gateways", 1)
    gateways = "gateway" if count == 1 else f"{count} gateways"
    console.print(
        f"{status['model']}, {status['mode']}: {npus['used']} of {npus['offered']} NPUs in use\n"
        f"{gateways}: {gateway['running']} requests running, {gateway['queued']} queued"
    )
    silent_s = status.get("board_silent_s")
    if silent_s is not None and silent_s > SILENT_S:
        console.print(
            f"the scaling board has not responded for {silent_s:.0f} s: no replicas are scaled or replaced, and hosts"
            " and targets are from then. Is Ray's head lost? Restart it at its address"
        )
    hosts = status.get("hosts", [])
    for host in hosts:
        if host.get("disk_full"):
            console.print(f"{host['name']}: {host['disk_full']}", markup=False)
    if len(hosts) > 1:
        console.print(host_table(hosts))
        console.print()
    console.print(_table(status["pools"]))
    kvcache = status.get("kvcache")
    if kvcache is not None:
        console.print()
        servers = kvcache["servers"]
        console.print(server_table(servers, f"kvcache {len(servers)}/{kvcache['target_replicas']}"))


def pids_of(status: dict[str, Any], pool: str) -> list[int]:
    """Process ids of a pool's live replicas; for a group, of its ranks.

    Raises: ConfigError if there is no such pool.
    """
    pools = _live(status)
    if pool not in pools:
        raise ConfigError(f"there is no pool {pool}; there are {', '.join(pools)}")
    return [pid for _, pid in pools[pool]]


def process_of(status: dict[str, Any], target: str) -> tuple[str, int]:
    """Name and process id of a live replica, rank or memory server.

    Args:
        target: a pool, for its first one; or a name as `cloudmatrix status` shows it, or the whole one.
    Raises: ConfigError if there is none.
    """
    pools = _live(status)
    if pools.get(target):
        return pools[target][0]
    everyone = [one for rows in pools.values() for one in rows]
    for name, pid in everyone:
        if target in (name, name.split("#")[-1], name.removeprefix("kvcache-")):
            return name, pid
    names = ", ".join([*pools, *(name for name, _ in everyone)])
    raise ConfigError(f"no live replica is called {target}; there are {names}")


def _live(status: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Names and process ids of live replicas, ranks and memory servers, by pool."""
    rows = {one["name"]: one["replicas"] for one in status["pools"]}
    if (kvcache := status.get("kvcache")) is not None:
        rows["kvcache"] = [{**one, "replica": one["name"]} for one in kvcache["servers"]]
    return {
        pool: [(row["replica"], row["pid"]) for row in of_pool if row["pid"] and row["state"] not in _LOST]
        for pool, of_pool in rows.items()
    }


def host_table(hosts: Sequence[dict[str, Any]]) -> Table:
    """One row per host; a lost one with the time since its loss."""
    table = plain_table(("host", "address", "state"), ("NPUs", "UB MiB", "gateways"))
    for host in hosts:
        lost, npus, memory = host["lost_s"], str(host["npus"]), str(host["ub_memory_mib"])
        if lost is None:
            npus, memory = f"{host['npus_used']}/{npus}", f"{host['ub_used_mib']}/{memory}"
        state = "alive" if lost is None else f"dead {lost:.0f} s"
        gateways = str(host.get("gateways", "?"))  # a gateway of the version before does not know it
        table.add_row(host["name"], host["address"], state, npus, memory, gateways if lost is None else "-")
    return table


def _table(pools: list[dict[str, Any]]) -> Table:
    table = plain_table(("pool", "replica", "NPUs"), ("pid", "HBM MiB", "KV blocks", "run", "wait", "queued"))
    for pool in pools:
        up = whole_replicas(replica for replica in pool["replicas"] if replica["state"] not in _LOST)
        name, group = f"{pool['name']} {up}/{pool['target_replicas']}", None
        for replica in pool["replicas"]:
            if replica.get("group") not in (None, group):
                group = replica["group"]
                own = [one for one in pool["replicas"] if one.get("group") == group]
                masked = max((one.get("masked_experts") or 0) for one in own)
                words = f" ({masked} experts masked)" if masked else ""
                table.add_row(name, group.split("#")[-1] + words, "", str(replica["shell_pid"]))
                name = ""
            table.add_row(name, *_cells(replica))
            name = ""
        if not pool["replicas"]:
            table.add_row(name, "none is up")
    return table


def _cells(replica: dict[str, Any]) -> list[str]:
    """A row; a rank's row is below that of its group, which shows the shell's process."""
    name = replica["replica"].split("#")[-1]
    if replica.get("group") is not None:
        name = f"  r{replica['rank']}"
    cells = [
        name + (f" ({replica['state']})" if replica["state"] != "serving" else ""),
        short_npus(replica["npus"]),
        str(replica["pid"]),
    ]
    if replica.get("role") == RankRole.EXPERTS.value:
        return [*cells, "experts"]
    return [
        *cells,
        f"{replica['hbm_used_bytes'] / MIB:.0f}/{replica['hbm_capacity_bytes'] / MIB:.0f}",
        f"{replica['kv_blocks_used']}/{replica['kv_blocks_total']}",
        str(replica["running"]),
        str(replica["waiting"] + replica["held"] + replica["pulling"] + replica["fetching"]),
        str(replica["queued_tokens"]),
    ]


def short_npus(names: list[str]) -> str:
    """NPUs of one instance in few characters: `["n0.npu2", "n0.npu3"]` -> `n0: 2-3`, on several nodes `n0-n1: 16`."""
    nodes = sorted({int(name.partition(".")[0].removeprefix("n")) for name in names})
    if len(nodes) > 1:
        return f"n{nodes[0]}-n{nodes[-1]}: {len(names)}"
    node = f"n{nodes[0]}"
    numbers = sorted(int(name.rpartition("npu")[2]) for name in names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return f"{node}: " + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def server_table(servers: Sequence[dict[str, Any]], lead: str = "") -> Table:
    """One row per memory server.

    Args:
        lead: content of an additional first column, with process and fill only; empty = all columns.
    """
    shown = (_PID_CELL, *_FILL_CELLS) if lead else (*_RING_CELLS, *_FILL_CELLS, *_HIT_CELLS)
    table = plain_table(("pool", "server", "state") if lead else ("server", "state"), [title for title, _ in shown])
    for server in servers:
        cells = [clip(server["name"].removeprefix("kvcache-")), _state(server), *(cell(server) for _, cell in shown)]
        table.add_row(*([lead, *cells] if lead else cells))
        lead = lead and " "
    if not servers:
        table.add_row(*([lead] if lead else []), "none is up")
    return table


def plain_table(left: Sequence[str], right: Sequence[str]) -> Table:
    """A table without lines.

    Args:
        left, right: titles of the columns that are aligned so.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in left:
        table.add_column(title, no_wrap=True)
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def clip(text: str) -> str:
    """Shorten a long name, keeping its end, which is its distinctive part."""
    return text if len(text) <= NAME_WIDTH else f"…{text[1 - NAME_WIDTH :]}"


def _fill(tier: dict[str, int]) -> str:
    return f"{tier['used_bytes'] / MIB:.0f}/{tier['capacity_bytes'] / MIB:.0f}" if tier["capacity_bytes"] else "-"


def _state(server: dict[str, Any]) -> str:
    """The state; while the ring is still raising a young server's weight step by step, the weight too."""
    return f"{server['state']} {server['weight']:.2f}" if 0 < server["weight"] < 1 else str(server["state"])


_PID_CELL: tuple[str, Cell] = ("pid", lambda s: str(s["pid"] or "-"))
_RING_CELLS: tuple[tuple[str, Cell], ...] = (("share", lambda s: f"{s['share']:.0%}"),)
_FILL_CELLS: tuple[tuple[str, Cell], ...] = (
    ("memory MiB", lambda s: _fill(s["dram"])),
    ("SSD MiB", lambda s: _fill(s["ssd"])),
    ("entries", lambda s: str(s["entries"])),
)
_HIT_CELLS: tuple[tuple[str, Cell], ...] = (
    ("hits", lambda s: str(s["hits"]["dram"])),
    ("SSD hits", lambda s: str(s["hits"]["ssd"])),
)
