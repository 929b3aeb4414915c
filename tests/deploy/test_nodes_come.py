"""Ray's own autoscaler on a head without NPUs: hosts join on demand, and are removed when they are empty.

Hosts of its offline provider are nodes on the head's machine, so all of it runs in one host made of namespaces.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.hosts import Hosts, hosts
from tests.deploy.ray_hosts import AGAIN, TOKEN, TOKEN_FILE, RayHosts
from tests.deploy.tools import DEPLOY
from tests.e2e.server import wait_for

SAME = "tests/scaling/core/test_node_wait.py::test_ray_may_add_a_node"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

CONFIG = Path(__file__).parent / "from-nothing.toml"
HEAD = DEPLOY / "hosts" / "head.sh"
OFFLINE, FILE = DEPLOY / "hosts" / "offline-autoscaler.yaml", "/tmp/autoscaler.yaml"
PROMPT = {"model": "storyteller", "prompt": "Once upon a time there was a", "max_tokens": 24, "temperature": 0}
WITHIN_S = 240.0
"""On a busy machine a node takes a minute."""


class Cloud:
    """A head whose Ray adds hosts, and an operator's commands on it."""

    def __init__(self, made: Hosts) -> None:
        self._made = made
        (self._name,) = made.addresses

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the head. Returns: its output."""
        return self._made.run(self._name, *RayHosts.within(*command), timeout=WITHIN_S, check=check)

    def cloudmatrix(self, *arguments: str, check: bool = True) -> str:
        """Run a command on the pools, or on the whole system."""
        return self.run("cloudmatrix", *arguments, check=check)

    def pools(self, *arguments: str, check: bool = True) -> str:
        """Run a command on the pools."""
        url = "http://127.0.0.1:8265"
        return self.cloudmatrix(*arguments, "--dashboard", url, "--token-file", TOKEN_FILE, check=check)

    def state(self) -> dict[str, Any]:
        """State of the pools."""
        asked = ("-sS", "-H", f"Authorization: Bearer {TOKEN}", "http://127.0.0.1:8265/api/pools")
        found: dict[str, Any] = json.loads(self.run("curl", *asked))
        return found

    def pool(self, name: str) -> dict[str, Any]:
        """State of one pool."""
        return next(one for one in self.state()["pools"] if one["pool"] == name)

    def hosts(self) -> list[str]:
        """Names of living hosts with NPUs."""
        return [one["name"] for one in self.state()["nodes"] if one["npus"] and one["state"] == "alive"]

    def answer(self) -> str:
        """Text of a completion."""
        body = ("-H", "Content-Type: application/json", "-d", json.dumps(PROMPT))
        said = self.run("curl", "-sS", "--max-time", "120", "http://127.0.0.1:8000/v1/completions", *body)
        text: str = json.loads(said)["choices"][0]["text"]
        return text

    def wait_until(self, what: str, condition: Any) -> None:
        """Wait for a condition. Raises: AssertionError with the decisions."""
        wait_for(condition, what, WITHIN_S, state=lambda: self.pools("decisions", "--last", "200", check=False))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A head without NPUs, and no other host."""
    folder = tmp_path_factory.mktemp("cloud")
    with hosts("cloud") as made:
        made.run("cloud", "sh", "-c", f"echo {TOKEN} >{TOKEN_FILE}")
        hasty = f"sed 's/idle_timeout_minutes: 1/idle_timeout_minutes: 0.1/' {OFFLINE} >{FILE}"
        made.run("cloud", "sh", "-c", hasty)
        settings = {
            "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_AUTH_TOKEN_PATH": TOKEN_FILE,
            "AUTOSCALING_CONFIG": FILE, "CPUS": "0", "NPUS": "0", "UB_MEMORY_MIB": "0",
            "HOST_ADDRESS": made.addresses["cloud"],
        }  # fmt: skip
        variables = [f"{name}={value}" for name, value in settings.items()]
        with (folder / "head").open("wb") as log:
            head = subprocess.Popen(
                made.command("cloud", *RayHosts.within("env", *variables, "sh", "-c", AGAIN, "sh", str(HEAD))),
                stdout=log,
                stderr=log,
            )
        found = Cloud(made)
        try:
            wait_for(
                lambda: "Resources" in found.run("ray", "status", check=False),
                "the head answers",
                WITHIN_S,
                state=lambda: (folder / "head").read_text(errors="replace")[-2000:],
            )
            yield found
        finally:
            head.terminate()
            head.wait()


def test_nodes_come_when_they_are_asked_for_and_go_when_they_are_empty(cloud: Cloud) -> None:
    said = cloud.cloudmatrix("serve", "--address", "auto", "--config", str(CONFIG))
    assert "more are requested from Ray's autoscaler" in said
    assert len(cloud.hosts()) == 1, "from nothing"
    before = cloud.answer()

    told = cloud.pools("scale", "decode", "2", "--wait")
    assert ": waits for a node" in told
    assert len(cloud.hosts()) == 2
    decisions = cloud.pools("decisions", "--last", "200")
    assert "room came after" in decisions
    assert any("serves after" in line and ": node " in line for line in decisions.splitlines()), decisions
    starts = json.loads(cloud.pools("decisions", "--starts", "--json"))["decode"]
    assert {"node", "placing", "process", "imports", "weights", "first_step"} <= set(starts)
    assert "cloudmatrix:replica_start_seconds_count" in cloud.run("curl", "-sS", "http://127.0.0.1:8000/metrics")

    cloud.pools("scale", "decode", "9")
    cloud.wait_until("it waits", lambda: cloud.pool("decode")["waits_s"] is not None)
    cloud.wait_until("in vain", lambda: cloud.pool("decode")["target"] == 3)
    assert "no node came for" in cloud.pools("decisions", "--last", "200")
    assert cloud.answer() == before

    cloud.wait_until("three serve", lambda: cloud.pool("decode")["running"] == 3)
    kept = {one["node"] for one in cloud.pool("kvcache")["replicas"] + cloud.pool("prefill")["replicas"]}
    assert "empty then" in cloud.pools("scale", "decode", "1")
    cloud.wait_until("Ray has taken the empty host", lambda: len(cloud.hosts()) == 1)
    assert set(cloud.hosts()) <= kept
    assert not [one for one in cloud.state()["nodes"] if one["state"] == "dead"], "it was not lost"
    assert cloud.answer() == before
