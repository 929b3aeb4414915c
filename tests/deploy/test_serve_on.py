"""`cloudmatrix serve --address` and `down` on two hosts whose Ray was started by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.ray_hosts import TOKEN, RayHosts

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parent / "two-hosts.toml"
PROMPT = {"model": "storyteller", "prompt": "Once upon a time there was a", "max_tokens": 24, "temperature": 0}


def answer(on: RayHosts, host: str) -> str:
    """Text that the gateway gives a client on a host."""
    body = ("-H", "Content-Type: application/json", "-d", json.dumps(PROMPT))
    said = on.hosts.run(host, "curl", "-sS", "--max-time", "120", f"{on.url('left')}/v1/completions", *body)
    text: str = json.loads(said)["choices"][0]["text"]
    return text


def left_behind(on: RayHosts, host: str) -> str:
    """Files of ours on a host."""
    return on.hosts.run(host, "sh", "-c", "ls -d /dev/shm/cloudmatrix* /tmp/cloudmatrix* 2>/dev/null || true")


def session_of(on: RayHosts) -> str:
    """The session as the name of the folder says it."""
    return on.hosts.run("left", "sh", "-c", "ls -d /tmp/cloudmatrix.*").strip()


def pools_of(on: RayHosts) -> dict[str, Any]:
    """State of the pools, as the scaling board tells it at Ray's dashboard."""
    url = f"http://{on.hosts.addresses['left']}:8265/api/pools"
    found: dict[str, Any] = json.loads(on.run("right", "curl", "-sS", "-H", f"Authorization: Bearer {TOKEN}", url))
    return found


def test_a_system_is_deployed_deployed_anew_and_taken_away(two_hosts: RayHosts) -> None:
    nobody = two_hosts.cloudmatrix("right", "serve", "--address", "10.77.0.1:1", "--config", str(CONFIG), check=False)
    assert "Traceback" not in nobody
    assert "no Ray answers at 10.77.0.1:1" in nobody
    said = two_hosts.cloudmatrix("left", "serve", "--address", two_hosts.address, "--config", str(CONFIG))
    assert "2 hosts, 16 NPUs, 2048 MiB of UB memory; authentication token; TLS off; control store in memory" in said
    assert f"endpoint         {two_hosts.url('left')}/v1" in said
    first, session = answer(two_hosts, "right"), session_of(two_hosts)
    assert len(first) > 20
    status = two_hosts.cloudmatrix("right", "status", "--url", two_hosts.url("left"))
    assert all(part in status for part in ("16 of 16 NPUs", "prefill 1/1", "decode 1/1", "kvcache 2/2"))

    tight = ("--set", "gateway.max_n=3", "--set", "slo.ttft_s=7")
    two_hosts.cloudmatrix("right", "serve", "--address", two_hosts.address, "--config", str(CONFIG), *tight)
    assert answer(two_hosts, "right") == first
    assert session_of(two_hosts) == session
    assert pools_of(two_hosts)["slo"]["ttft_s"] == 7, "the board has the new configuration"

    said = two_hosts.cloudmatrix("right", "down", "--address", two_hosts.address)
    assert "cloudmatrix is gone" in said
    assert "runs on" in said
    assert [left_behind(two_hosts, host) for host in two_hosts.names] == ["", ""]
    assert "no system was deployed" in two_hosts.cloudmatrix("left", "down")
