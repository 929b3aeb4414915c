"""Three upgrades in a row under steady requests, on a Ray that was started by hand: no request fails, each is exact."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.ray_hosts import RayHosts, ray_hosts, steady

SAME = "tests/deploy/test_places.py::test_two_upgrades_under_load"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

CONFIG = Path(__file__).parent / "one-host.toml"


@pytest.fixture(scope="module")
def one_host() -> Iterator[RayHosts]:
    """A Ray on one host."""
    with ray_hosts("solo") as started:
        yield started


def deploy(on: RayHosts, *options: str) -> str:
    """Deploy, or upgrade."""
    return on.cloudmatrix("solo", "serve", "--address", on.address, "--config", str(CONFIG), *options, timeout=400)


def settings(*given: str) -> list[str]:
    """Options of the command line."""
    return [word for one in given for word in ("--set", one)]


def test_three_upgrades_under_load(one_host: RayHosts) -> None:
    first = deploy(one_host)
    assert "deploying kvcache, prefill, decode, gateway" in first
    found: dict[str, Any] = {}
    with steady(one_host, "solo", found):
        live = settings("gateway.max_n=3", "slo.ttft_s=7")
        told = deploy(one_host, "--dry-run", *live)
        assert told.splitlines() == [
            "gateway keeps running with new values of: gateway.max_n, slo.ttft_s",
            "scaling board keeps running with new values of: slo.ttft_s",
        ]
        assert told.splitlines()[0] in deploy(one_host, *live)
        assert "at most 3 are allowed" in refusal(one_host)

        decode = (*live, *settings("decode.max_sequences=32"))
        assert "decode restarts: decode.max_sequences" in deploy(one_host, *decode)

        gateway = (*decode, *settings("gateway.routing=locality"))
        assert "gateway restarts: gateway.routing" in deploy(one_host, *gateway)
        assert "nothing changes" in deploy(one_host, "--dry-run", *gateway)
    assert found["failures"] == []
    assert found["answers"] > 30
    assert found["texts"] == [1, 1, 1, 1]


def refusal(on: RayHosts) -> str:
    """The gateway's response to a request for four choices."""
    body = json.dumps({"model": "storyteller", "prompt": "Once", "max_tokens": 1, "n": 4})
    header = ("-H", "Content-Type: application/json")
    return on.hosts.run("solo", "curl", "-sS", f"{on.url('solo')}/v1/completions", *header, "-d", body)


def test_without_room_streams_move_before_a_replica_leaves(one_host: RayHosts) -> None:
    """Neither pool has the NPUs for one more: decode streams continue at prefill instances, prompts wait."""
    deploy(one_host)
    found: dict[str, Any] = {}
    with steady(one_host, "solo", found):
        larger = settings("decode.npus_per_instance=5")
        assert "decode restarts: decode.npus_per_instance" in deploy(one_host, *larger)
        assert "prefill restarts" in deploy(one_host, *larger, *settings("prefill.npus_per_instance=3"))
    assert found["failures"] == []
    assert found["answers"] > 20
    assert found["texts"] == [1, 1, 1, 1]
