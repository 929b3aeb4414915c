"""`cloudmatrix pool`: the KV-cache pool as tables: its ring, the fill of its servers, hit counts and their sources."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from hardware.units import MIB
from serving.cli.status_table import plain_table, server_table
from serving.client.http_client import ask_again, ask_gateway
from serving.terminal import table_console

AUDIT_DEADLINE_S = 330.0
"""A little more than the gateway's deadline for its servers, so that its response arrives."""

FORGET_DEADLINE_S = 60.0


def fetch_pool(url: str, api_key: str | None) -> dict[str, Any]:
    """Query a gateway's pool, with retries while it is too busy.

    Raises: UnavailableError, in one line; also if the system has no pool.
    """
    return ask_again(lambda: ask_gateway(url, "/pool", api_key, deadline_s=10.0))


def audit_pool(url: str, api_key: str | None, *, repair: bool) -> dict[str, Any]:
    """Audit every memory server.

    Raises: UnavailableError.
    """
    body = {"repair": repair}
    return ask_gateway(url, "/pool/audit", api_key, body=body, deadline_s=AUDIT_DEADLINE_S)


def forget_namespace(url: str, api_key: str | None, name: str) -> dict[str, Any]:
    """Delete a namespace's cache.

    Raises: UnavailableError; also if a server failed.
    """
    path = f"/pool/namespaces/{quote(name, safe='')}"
    return ask_gateway(url, path, api_key, method="DELETE", deadline_s=FORGET_DEADLINE_S)


def set_quota(url: str, api_key: str | None, name: str, quota_mib: int | None, weight: float | None) -> dict[str, Any]:
    """Change a namespace's quota and weight; None = unchanged.

    Raises: UnavailableError.
    """
    path = f"/pool/namespaces/{quote(name, safe='')}"
    body = {"quota_mib": quota_mib, "weight": weight}
    return ask_gateway(url, path, api_key, body=body, deadline_s=10.0)


def fetch_sessions(url: str, api_key: str | None, namespace: str | None) -> dict[str, Any]:
    """List a namespace's sessions; None = that of the key.

    Raises: UnavailableError.
    """
    query = "" if namespace is None else f"?namespace={quote(namespace, safe='')}"
    return ask_gateway(url, f"/pool/sessions{query}", api_key, deadline_s=10.0)


def print_sessions(answer: dict[str, Any]) -> None:
    """Print the sessions of a namespace, those with the latest claims first."""
    console, sessions = table_console(), answer["sessions"]
    console.print(f"{answer['namespace']}: {_count(len(sessions), 'session')} with blocks in the KV-cache pool")
    if not answer["complete"]:
        console.print("not every memory server responded: the figures are too small")
    if not sessions:
        return
    table = plain_table(("session", "branches"), ("memory MiB", "SSD MiB", "left s"))
    table.add_column("last outcome")
    for one in sessions:
        held = (f"{one['dram_bytes'] / MIB:.1f}", f"{one['ssd_bytes'] / MIB:.1f}", f"{one['left_s']:.0f}")
        branches = ", ".join(name or "trunk" for name in one["branches"])
        table.add_row(_short(one["session"]), _short(branches), *held, one["outcome"])
    console.print(table)


def _short(text: str) -> str:
    """A client's text in the width of a column, without control characters."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}\N{HORIZONTAL ELLIPSIS}"


_WIDEST = 40


def print_quota(answer: dict[str, Any]) -> None:
    """Print the present quota."""
    quota = f"{answer['quota_bytes'] / MIB:.0f} MiB" if answer["quota_bytes"] else "no limit"
    print(f"{answer['namespace']}: quota {quota}, weight {answer['weight']:g}, until the configuration changes it")


def print_json(value: dict[str, Any]) -> None:
    """Print a response unchanged."""
    print(json.dumps(value, indent=2))


def print_pool(pool: dict[str, Any]) -> None:
    """Print ring, fill, hits and namespaces to standard output; a tenant receives only its own namespace."""
    console = table_console()
    if not pool["blocks"]:
        console.print("KV-cache pool: this API key sees its own namespace; servers and sums are for administrators")
        if not pool["complete"]:
            console.print("not every memory server responded: the figures are too small")
        _print_namespaces(console, pool["namespaces"])
        return
    servers = pool["servers"]
    console.print(f"KV-cache pool: {_count(len(servers), 'memory server')}\n{_hits(pool['blocks'])}")
    console.print(server_table(servers))
    for name, reason in pool["silent"].items():
        console.print(f"{name} does not respond: {reason}")
    console.print()
    _print_namespaces(console, pool["namespaces"])


def print_audit(audit: dict[str, Any]) -> None:
    """Print an audit's findings."""
    for name, server in audit["servers"].items():
        print(f"{name}: " + ("sound" if server["ok"] else f"{len(server['problems'])} problems"))
        for problem in server["problems"]:
            print(f"  {problem}")
    for name, reason in audit["silent"].items():
        print(f"{name}: not audited, it did not respond: {reason}")
    print("the pool is sound" if audit["ok"] else "the pool is NOT sound, or could not be checked completely")


def print_forgotten(answer: dict[str, Any]) -> None:
    """Print the result of a deletion."""
    megabytes = answer["bytes"] / MIB
    print(f"deleted {_count(answer['entries'], 'entry', 'entries')}, {megabytes:.1f} MiB, of '{answer['namespace']}'")


def _hits(blocks: dict[str, int]) -> str:
    """The instances' point of view: outcome of the blocks that they requested."""
    asked = sum(blocks.values())
    if not asked:
        return "nothing has been looked up yet"
    dram, ssd = blocks["dram"] / asked, blocks["ssd"] / asked
    return f"{asked:,} blocks looked up: {dram:.0%} found in memory, {ssd:.0%} on SSD, {blocks['lost']} lost"


def _print_namespaces(console: Console, namespaces: Sequence[dict[str, Any]]) -> None:
    console.print(_namespace_table(namespaces))
    for one in namespaces:
        if one["changed"]:
            console.print(f"{one['name']}: changed while running, weight {one['weight']:g}")
        if not one["configured"]:
            console.print(f"{one['name']}: no longer configured; `cloudmatrix pool forget {one['name']}` removes it")


def _namespace_table(namespaces: Sequence[dict[str, Any]]) -> Table:
    table = plain_table(("namespace",), ("memory MiB", "SSD MiB", "quota MiB", "entries"))
    for one in namespaces:
        quota = f"{one['quota_bytes'] / MIB:.0f}" if one["quota_bytes"] else "none"
        held = (f"{one['dram_bytes'] / MIB:.1f}", f"{one['ssd_bytes'] / MIB:.1f}")
        table.add_row(one["name"], *held, quota, str(one["entries"]))
    return table


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
