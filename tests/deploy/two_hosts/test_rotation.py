"""A range of ports and a new secret on two hosts whose Ray was started by hand: no process restarts, all requests
continue.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.identity import KEEP_PERIOD_S
from tests.deploy.ray_hosts import RayHosts

SAME = "tests/cluster/test_socket_keeper.py::test_a_secret_is_rotated_while_connections_go_on"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

CONFIG = Path(__file__).parents[1] / "two-hosts.toml"
PROMPT = {"model": "storyteller", "prompt": "The dog and the ball", "max_tokens": 24, "temperature": 0}
FIRST, LAST = 30_000, 30_019
LISTENING = "cat /proc/net/tcp"


def answer(on: RayHosts, host: str) -> str:
    """Text of the gateway's response to a client on a host."""
    body = ("-H", "Content-Type: application/json", "-d", json.dumps(PROMPT))
    said = on.hosts.run(host, "curl", "-sS", "--max-time", "120", f"{on.url('left')}/v1/completions", *body)
    text: str = json.loads(said)["choices"][0]["text"]
    return text


def ports(on: RayHosts, host: str) -> set[int]:
    """Ports of the range with a listener on any address of a host."""
    rows = [line.split() for line in on.hosts.run(host, "sh", "-c", LISTENING).splitlines()[1:]]
    found = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return {port for port in found if FIRST <= port <= LAST}


def replica(on: RayHosts, pool: str) -> dict[str, Any]:
    """The pool's only replica, as the gateway lists it; empty while there is none."""
    said = on.hosts.run("left", "curl", "-sS", "--max-time", "60", f"{on.url('left')}/cluster")
    pools = {one["name"]: one["replicas"] for one in json.loads(said)["pools"]}
    return pools[pool][0] if pools[pool] else {}


def test_a_rotated_secret_counts_for_those_who_are_there_and_those_who_come(two_hosts: RayHosts) -> None:
    ranged = ("--set", f'cluster.port_range="{FIRST}-{LAST}"', "--set", "kvcache.replicas=2")
    said = two_hosts.cloudmatrix("left", "serve", "--address", two_hosts.address, "--config", str(CONFIG), *ranged)
    assert "without TLS prompts and KV blocks can be read on the network between hosts" in said
    first = answer(two_hosts, "right")
    until = time.monotonic() + 60.0
    while not replica(two_hosts, "prefill")["readers"]:  # an instance announces it about once a second
        assert time.monotonic() < until, "its segment is read by the other host"
        time.sleep(0.5)
    every = [ports(two_hosts, host) for host in two_hosts.names]
    assert sum(map(len, every)) == 2 * 2 + 2 + 1, "two for an instance, one for a memory server or gateway"

    assert "every process takes the new secret" in two_hosts.cloudmatrix("right", "rotate-secret", "--address", "auto")
    time.sleep(2 * KEEP_PERIOD_S + 1.0)  # as stated by the command
    forgets = two_hosts.cloudmatrix("right", "rotate-secret", "--address", "auto", "--forget-old")
    assert "only the current secret is accepted now" in forgets
    time.sleep(2 * KEEP_PERIOD_S + 1.0)
    assert answer(two_hosts, "right") == first, "connections that exist stay"
    old = replica(two_hosts, "decode")["pid"]
    commands = {
        host: two_hosts.hosts.run(host, "sh", "-c", f"tr '\\0' ' ' </proc/{old}/cmdline || true")
        for host in two_hosts.names
    }
    (host,) = (host for host, command in commands.items() if "decode" in command)
    two_hosts.hosts.run(host, "kill", "-9", str(old))
    until = time.monotonic() + 180.0
    while replica(two_hosts, "decode").get("pid") in (None, old):
        assert time.monotonic() < until, "Serve replaces it"
        time.sleep(1.0)
    assert answer(two_hosts, "right") == first, "deployed with the old secret, it has taken the new one"
    two_hosts.cloudmatrix("right", "down", "--address", two_hosts.address)
