"""`cloudmatrix status`: fetch a gateway's numbers, print them as a table."""

import json
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

from hardware.units import MIB
from serving.errors import UnavailableError

FETCH_DEADLINE_S = 5.0


def fetch_status(url: str, api_key: str | None) -> dict[str, Any]:
    """Ask a gateway.

    Raises: UnavailableError, in one line, when it cannot be reached, wants another key, or is not a gateway.
    """
    request = urllib.request.Request(f"{url.rstrip('/')}/cluster")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=FETCH_DEADLINE_S) as response:
            status: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        hint = "give its key with --api-key" if error.code == 401 else "is that a CloudMatrix gateway?"
        raise UnavailableError(f"{url} answered {error.code}: {hint}") from error
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no gateway at {url} ({error}); start one with `cloudmatrix serve`, or give --url"
        ) from error
    return status


def print_status(status: dict[str, Any], *, as_json: bool) -> None:
    """Print to standard output."""
    if as_json:
        print(json.dumps(status, indent=2))
        return
    console = Console()
    npus, gateway = status["npus"], status["gateway"]
    console.print(
        f"{status['model']}, {status['mode']}: {npus['used']} of {npus['offered']} NPUs in use\n"
        f"gateway: {gateway['running']} requests running, {gateway['queued']} queued"
    )
    console.print(_table(status["pools"]))


def _table(pools: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("pool", "replica", "NPUs"):
        table.add_column(title, no_wrap=True)
    for title in ("HBM MiB", "KV blocks", "run", "wait", "queued", "steps"):
        table.add_column(title, justify="right", no_wrap=True)
    for pool in pools:
        name = f"{pool['name']} {len(pool['replicas'])}/{pool['target_replicas']}"
        for replica in pool["replicas"]:
            table.add_row(name, *_cells(replica))
            name = ""
        if not pool["replicas"]:
            table.add_row(name, "none is up")
    return table


def _cells(replica: dict[str, Any]) -> list[str]:
    return [
        replica["replica"].split("#")[-1] + (" (draining)" if replica["draining"] else ""),
        short_npus(replica["npus"]),
        f"{replica['hbm_used_bytes'] / MIB:.0f}/{replica['hbm_capacity_bytes'] / MIB:.0f}",
        f"{replica['kv_blocks_used']}/{replica['kv_blocks_total']}",
        str(replica["running"]),
        str(replica["waiting"] + replica["held"] + replica["pulling"]),
        str(replica["queued_tokens"]),
        str(replica["steps_total"]),
    ]


def short_npus(names: list[str]) -> str:
    """NPUs of one node in few characters: `["n0.npu2", "n0.npu3", "n0.npu4"]` -> `n0: 2-4`."""
    node = names[0].partition(".")[0]
    numbers = sorted(int(name.rpartition("npu")[2]) for name in names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return f"{node}: " + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
