"""Two hosts with equal labels, as a group of equal pods has: each has a number, and everything is spread."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.ray_hosts import RayHosts, ray_hosts

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parent / "places.toml"
PATIENCE_S = 180.0
LABEL = "--labels=cloudmatrix-node=0"
HEALTH = '{"health_check_initial_delay_ms":0,"health_check_period_ms":1000,"health_check_timeout_ms":1000}'


@pytest.fixture(scope="module")
def equal_hosts() -> Iterator[RayHosts]:
    """A Ray on `left` and `right`, both with the label 0, and the system on it."""
    with ray_hosts("left", "right", options=(LABEL,), head=(f"--system-config={HEALTH}",)) as started:
        started.cloudmatrix("left", "serve", "--address", started.address, "--config", str(CONFIG))
        yield started


def status_of(on: RayHosts) -> dict[str, Any]:
    """What a gateway on the first host tells of the cluster."""
    found: dict[str, Any] = json.loads(on.cloudmatrix("left", "status", "--json", "--url", on.url("left")))
    return found


def until(on: RayHosts, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status of which something is so."""
    end = time.monotonic() + PATIENCE_S
    while not so(status := status_of(on)):
        assert time.monotonic() < end, short(status)
        time.sleep(0.5)
    return status


def short(status: dict[str, Any]) -> list[Any]:
    """Members with their states and places, and hosts."""
    replicas = [one for pool in status["pools"] for one in pool["replicas"]]
    return [
        *[(one["replica"], one["state"], one["npus"][0]) for one in replicas],
        *[one["name"] for one in status["kvcache"]["servers"]],
        *status["hosts"],
    ]


def npus(status: dict[str, Any]) -> list[str]:
    """NPUs of all instances."""
    return [npu for pool in status["pools"] for replica in pool["replicas"] for npu in replica["npus"]]


def whole(status: dict[str, Any]) -> bool:
    """Whether every pool has what it should have."""
    pools, servers = status["pools"], status["kvcache"]["servers"]
    running = [[one for one in pool["replicas"] if one["state"] == "serving"] for pool in pools]
    return all(len(there) == 1 for there in running) and len(servers) == 2


def test_equal_labels_are_told_apart_and_everything_is_spread(equal_hosts: RayHosts) -> None:
    status = until(equal_hosts, lambda status: whole(status) and len(status["hosts"]) == 2)
    assert sorted(host["name"] for host in status["hosts"]) == ["n0", "n1"]
    assert {host["npus_used"] for host in status["hosts"]} == {4}, "an instance on each"
    assert sorted({npu.partition(".")[0] for npu in npus(status)}) == ["n0", "n1"]
    assert len(set(npus(status))) == 8
    assert sorted(one["name"] for one in status["kvcache"]["servers"]) == ["kvcache-0-0", "kvcache-1-0"]
    for name in equal_hosts.names:
        equal_hosts.hosts.run("left", "curl", "-sSf", f"{equal_hosts.url(name)}/ready")
