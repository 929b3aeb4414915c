"""The end of a run: checks that all resources were released, by the gateway, the pool and the machine."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from serving.client.http_client import ask_gateway
from serving.errors import UnavailableError
from serving.tools.chaos.chaos_result import Leaks
from serving.tools.chaos.machines import Machines
from serving.tools.chaos.targets import Target, sizes, there

REPLICA_COUNTS = ("running", "waiting", "held", "pulling", "fetching", "queued_tokens", "kv_blocks_used")
POOL_AUDIT_DEADLINE_S = 120.0
_LOOK_EVERY_S = 0.5
_ANNOUNCED_S = 1.5
"""Replicas report once a second: two polls this far apart use different reports."""
_WRONG_BYTES = "wrong bytes in memory"


def busy(status: dict[str, Any]) -> dict[str, int]:
    """Counters of `GET /cluster` that should be zero at idle but are not, plus missing replicas of pools."""
    left = {f"gateway {name}": int(count) for name, count in status["gateway"].items() if count}
    for pool in status["pools"]:
        for replica in pool["replicas"]:
            left |= {f"{replica['replica']} {name}": int(replica[name]) for name in REPLICA_COUNTS if replica[name]}
    listed_now = there(status)
    missing = {pool: wanted - listed_now[pool] for pool, wanted in sizes(status).items()}
    left |= {f"{pool} replicas missing": count for pool, count in missing.items() if count > 0}
    for server in status.get("kvcache", {}).get("servers", ()):
        left |= {f"{server['name']} entries {name}": int(count) for name, count in server["in_use"].items() if count}
    return left


def look_for_leaks(
    url: str, api_key: str | None, machines: Machines, faulted: Iterable[Target], settle_s: float, *, bits: int
) -> Leaks:
    """Wait until the system is idle, then check all resources. Blocks for that time.

    Args:
        faulted: replicas that were killed or frozen, and have not survived: their processes must have ended.
        bits: of stored blocks that were flipped: the pool's audit may find, and remove, this many wrong blocks.
    """
    leaks = Leaks()
    faulted = list(faulted)
    deadline = time.monotonic() + settle_s
    leaks.counts = _at_rest(url, api_key, deadline)
    _wait(lambda: not _strays(url, api_key, machines, faulted), deadline)
    leaks.processes = _strays(url, api_key, machines, faulted)
    _wait(lambda: not machines.orphans(), deadline)
    leaks.segments = [f"UB segment {name} belongs to nobody" for name in machines.orphans()]
    _audit_pool(url, api_key, leaks, bits)
    return leaks


def _at_rest(url: str, api_key: str | None, deadline: float) -> dict[str, int]:
    """Counters that are not idle once two polls in a row agree that all are, or the time is over."""
    quiet_since: float | None = None
    while True:
        left = _busy_now(url, api_key)
        now = time.monotonic()
        quiet_since = None if left else quiet_since or now
        if (quiet_since is not None and now - quiet_since >= _ANNOUNCED_S) or now > deadline:
            return left
        time.sleep(_LOOK_EVERY_S)


def _busy_now(url: str, api_key: str | None) -> dict[str, int]:
    try:
        return busy(ask_gateway(url, "/cluster", api_key))
    except UnavailableError:
        return {"gateway does not answer": 1}


def _strays(url: str, api_key: str | None, machines: Machines, faulted: Iterable[Target]) -> list[str]:
    """Processes that should not exist."""
    try:
        status = ask_gateway(url, "/cluster", api_key)
    except UnavailableError:
        return ["gateway does not answer"]
    known = {one.process for one in machines.look(status)}
    left = [f"process {one.pid} of {one.name} is still there" for one in faulted if machines.alive(one)]
    return left + machines.strays(known | {one.process for one in faulted})


def _wait(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _audit_pool(url: str, api_key: str | None, leaks: Leaks, bits: int) -> None:
    """The pool's own audit of ledgers, memory and disk."""
    try:
        servers = sizes(ask_gateway(url, "/cluster", api_key)).get("kvcache")
        if servers is None:
            return
        body = {"repair": bits > 0}
        found = ask_gateway(url, "/pool/audit", api_key, body=body, deadline_s=POOL_AUDIT_DEADLINE_S)
    except UnavailableError as error:
        leaks.pool.append(f"KV-cache pool: no audit ({error})")
        return
    leaks.pool += [f"KV-cache pool: {name} did not answer the audit" for name in found["silent"]]
    unknown = servers - len(found["servers"]) - len(found["silent"])
    if unknown > 0:
        leaks.pool.append(f"KV-cache pool: {unknown} of {servers} memory servers are not there to be audited")
    for name, answer in found["servers"].items():
        for problem in answer["problems"]:
            if _WRONG_BYTES in problem and leaks.repaired_flips < bits:
                leaks.repaired_flips += 1
            else:
                leaks.pool.append(f"{name}: {problem}")
