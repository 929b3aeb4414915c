"""`cloudmatrix serve --address` and `down` on two hosts whose Ray was started by hand."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from serving import version
from serving.gateway.api.tokenizer import Tokenizer
from serving.version import VERSION as RELEASE
from tests.deploy.ray_hosts import MODEL, TOKEN, RayHosts, left_behind
from tests.deploy.tools import DEPLOY
from tests.e2e.server import wait_for
from tests.fakes.hub import NAME
from tests.live.workload import GREEDY, Reference

SAME = "tests/deploy/test_places.py::test_two_upgrades_under_load"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

SERVE_YAML = DEPLOY / "serve.yaml"
VERSION = version.__file__
CONFIG = Path(__file__).parents[1] / "two-hosts.toml"
TEXT, TOKENS = "Once upon a time there was a", 24
LONG = 300
SPREAD = ("experts.across_nodes=true", "decode.expert_ranks=2", "decode.npus_per_instance=5", "decode.expert_npus=2")
"""An attention rank and an expert rank fill seven of eight NPUs of a host."""
PROMPT = {"model": "storyteller", "prompt": TEXT, "max_tokens": TOKENS, "temperature": 0}


@pytest.fixture(scope="module")
def expected() -> str:
    """Text of the model without engine, pools and hosts."""
    tokenizer = Tokenizer.from_folder(MODEL)
    prompt = tuple(tokenizer.encode(TEXT, add_special_tokens=True))
    return tokenizer.decode(Reference(MODEL).output(prompt, structs.replace(GREEDY, max_tokens=TOKENS)))


def answer(on: RayHosts, host: str) -> str:
    """Text of the gateway's response to a client on a host."""
    body = ("-H", "Content-Type: application/json", "-d", json.dumps(PROMPT))
    said = on.hosts.run(host, "curl", "-sS", "--max-time", "120", f"{on.url(on.gateway_host())}/v1/completions", *body)
    text: str = json.loads(said)["choices"][0]["text"]
    return text


@contextmanager
def hub_on(on: RayHosts, host: str) -> Iterator[str]:
    """A fake Hugging Face Hub that only one host reaches, with the bundled model. Yields: its URL."""
    command = on.hosts.command(host, sys.executable, "-m", "tests.fakes.hub", str(MODEL))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=DEPLOY.parent) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def wait(condition: Callable[[], bool], what: str, state: Callable[[], object] = str) -> None:
    """Wait for a condition whose poll starts a process."""
    wait_for(condition, what, state=state, pause_s=0.5)


def session_of(on: RayHosts) -> str:
    """Session in the folder's name."""
    return on.hosts.run("left", "sh", "-c", "ls -d /tmp/cloudmatrix.*").strip()


def pools_of(on: RayHosts) -> dict[str, Any]:
    """State of the pools, as the scaling board reports it at Ray's dashboard."""
    url = f"http://{on.hosts.addresses['left']}:8265/api/pools"
    found: dict[str, Any] = json.loads(on.run("right", "curl", "-sS", "-H", f"Authorization: Bearer {TOKEN}", url))
    return found


def test_a_system_is_deployed_deployed_anew_and_taken_away(two_hosts: RayHosts, expected: str) -> None:
    nobody = two_hosts.cloudmatrix("right", "serve", "--address", "10.77.0.1:1", "--config", str(CONFIG), check=False)
    assert "Traceback" not in nobody
    assert "no Ray responds at 10.77.0.1:1" in nobody
    said = two_hosts.cloudmatrix("left", "serve", "--address", two_hosts.address, "--config", str(CONFIG))
    assert "2 hosts, 16 NPUs, 2048 MiB of UB memory; authentication token; TLS off; control store in memory" in said
    assert f"endpoint         {two_hosts.url('left')}/v1" in said
    session = session_of(two_hosts)
    assert answer(two_hosts, "right") == expected
    status = two_hosts.cloudmatrix("right", "status", "--url", two_hosts.url("left"))
    assert all(part in status for part in ("16 of 16 NPUs", "prefill 1/1", "decode 1/1", "kvcache 2/2"))

    tight = ("--set", "gateway.max_n=3", "--set", "slo.ttft_s=7")
    two_hosts.cloudmatrix("right", "serve", "--address", two_hosts.address, "--config", str(CONFIG), *tight)
    assert answer(two_hosts, "right") == expected
    assert session_of(two_hosts) == session
    assert pools_of(two_hosts)["slo"]["ttft_s"] == 7, "the board has the new configuration"

    said = two_hosts.cloudmatrix("right", "down", "--address", two_hosts.address)
    assert "removed cloudmatrix" in said
    assert "keeps running" in said
    assert [left_behind(two_hosts, host) for host in two_hosts.names] == ["", ""]
    assert "no system was deployed" in two_hosts.cloudmatrix("left", "down")


def test_the_doctor_finds_what_is_wrong_on_a_host(two_hosts: RayHosts) -> None:
    sound = two_hosts.cloudmatrix("left", "doctor", "--address", two_hosts.address, "--config", str(CONFIG))
    assert "all hosts are as they should be" in sound
    left, right = (f"{name} ({two_hosts.hosts.addresses[name]})" for name in two_hosts.names)
    blocked = f"to {two_hosts.hosts.addresses['left']} ipproto tcp dport 30000-30019 prohibit"
    older = "sed s/VERSION.=.*/VERSION='\"0.0.9\"'/"
    injure = (
        f"mount -t tmpfs none {MODEL}",
        "fallocate -l 5500M /dev/shm/others",
        f"{older} {VERSION} >/tmp/older.py && mount --bind /tmp/older.py {VERSION}",
        f"ip rule add {blocked}",
    )
    heal = (f"umount {MODEL}", "rm /dev/shm/others", f"umount {VERSION}", f"ip rule delete {blocked}")
    two_hosts.hosts.run("right", "sh", "-c", " && ".join(injure))
    try:
        words = ("--address", "auto", "--config", str(CONFIG), "--set", 'cluster.port_range="30000-30019"')
        sick = two_hosts.cloudmatrix("left", "doctor", *words, check=False)
    finally:
        two_hosts.hosts.run("right", "sh", "-c", "; ".join(heal))
    assert f"{right}: has no {MODEL}: it gets small files from" in sick
    assert "MiB free of 1024 MiB of UB memory: delete what others left there" in sick
    assert f"{right}: has version 0.0.9, this machine {RELEASE}: install the same on every host" in sick
    assert f"{right}: does not reach {left} at ports 30000-30019: open them in the firewall between them" in sick
    assert "3 problems found" in sick


def test_a_host_that_the_doctor_finds_without_the_model_serves_all_the_same(two_hosts: RayHosts, expected: str) -> None:
    """Prefill and decode are on different hosts, so one of them has no folder, and no files of the Hub."""
    two_hosts.hosts.run("right", "mount", "-t", "tmpfs", "none", str(MODEL.parent))
    try:
        with hub_on(two_hosts, "left") as url:
            named = ("--model", NAME, "--set", "model.name=storyteller")
            fetch = (
                "env",
                f"HF_ENDPOINT={url}",
                "HF_HOME=/tmp/hf",
                "cloudmatrix",
                "serve",
                "--address",
                "auto",
                *named,
            )
            said = two_hosts.run("left", *fetch, "--config", str(CONFIG), timeout=300)
        assert f"cloudmatrix: model {NAME}: commit " in said
        assert "of weights into /tmp/hf/hub/models--test--random/snapshots/" in said
        assert answer(two_hosts, "left") == expected
        two_hosts.hosts.run("right", "test", "!", "-e", "/tmp/hf")
        made = two_hosts.hosts.run("right", "sh", "-c", "ls /tmp/cloudmatrix.*/model-*")
        assert "tokenizer.json" in made
        two_hosts.cloudmatrix("left", "down")
        without = ("--set", "kvcache.replicas=0")
        said = two_hosts.cloudmatrix(
            "left", "serve", "--address", "auto", "--config", str(CONFIG), *without, check=False
        )
        assert f"host right has no {MODEL}, and no memory server offers its weights: copy or mount" in said
    finally:
        two_hosts.hosts.run("right", "umount", str(MODEL.parent))
        two_hosts.cloudmatrix("left", "down")


def test_serve_deploys_it_from_a_file(two_hosts: RayHosts, expected: str) -> None:
    """The commands at the head of deploy/serve.yaml; a second deployment keeps session, secret and salt."""
    dashboard = ("-a", f"http://{two_hosts.hosts.addresses['left']}:8265")
    two_hosts.run("right", "serve", "deploy", *dashboard, str(SERVE_YAML))
    assert answer(two_hosts, "left") == expected
    session = session_of(two_hosts)

    changed = SERVE_YAML.read_text().replace("set: []", 'set: ["slo.ttft_s=7"]')
    two_hosts.hosts.run("right", "sh", "-c", f"cat >/tmp/serve.yaml <<'END'\n{changed}\nEND")
    two_hosts.run("right", "serve", "deploy", *dashboard, "/tmp/serve.yaml")
    wait(lambda: pools_of(two_hosts).get("slo", {}).get("ttft_s") == 7, "the board has the new configuration")
    assert answer(two_hosts, "left") == expected
    assert session_of(two_hosts) == session

    broken = SERVE_YAML.read_text().replace("set: []", 'set: ["gateway.prot=8080"]')
    two_hosts.hosts.run("right", "sh", "-c", f"cat >/tmp/serve.yaml <<'END'\n{broken}\nEND")
    two_hosts.run("right", "serve", "deploy", *dashboard, "/tmp/serve.yaml")
    wait(lambda: "did you mean `port`?" in two_hosts.serve_status(), "a mistake is shown by `serve status`")
    assert answer(two_hosts, "left") == expected, "what was deployed serves on"
    two_hosts.cloudmatrix("right", "down")


@pytest.mark.nightly("tests/group/test_far_ranks.py::test_a_lost_host_costs_a_pause")
def test_a_group_of_both_hosts_goes_on_without_the_ranks_of_one(two_hosts: RayHosts) -> None:
    """First the processes of its ranks on a host are killed, then the host is cut off, both times under streams."""
    file = ("--config", str(DEPLOY / "transformerless.toml"))
    keys = [f"--set={key}" for key in (*SPREAD, "hardware.hbm_per_die_mib=32", 'gateway.host="0.0.0.0"')]
    two_hosts.cloudmatrix("left", "serve", "--address", two_hosts.address, *file, *keys, timeout=400)
    wait(lambda: len(roles_on(two_hosts, "right")) == 2, "a rank of each role is there")
    pids = roles_on(two_hosts, "right").values()
    streamed(two_hosts, lambda: two_hosts.hosts.run("right", "kill", "-9", *map(str, pids)))
    wait(lambda: len(set(roles_on(two_hosts, "right").values()) - set(pids)) == 2, "both are replaced")
    try:
        streamed(two_hosts, lambda: two_hosts.hosts.does("cut", "right"))
    finally:
        two_hosts.hosts.does("join", "right")


def roles_on(on: RayHosts, host: str) -> dict[str, int]:
    """Processes of the group's ranks on a host, by role."""
    shown: dict[str, Any] = on.hosts.get("left", f"{on.url('left')}/cluster")
    names = [one["name"] for one in shown["hosts"] if one["address"] == on.hosts.addresses[host]]
    (decode,) = [pool["replicas"] for pool in shown["pools"] if pool["name"] == "decode"]
    there = [one for one in decode if one["state"] == "serving" and one["npus"][0].partition(".")[0] in names]
    return {one["role"]: one["pid"] for one in there}


def streamed(on: RayHosts, fault: Callable[[], object]) -> None:
    """Cause a fault when four streams have begun. Each must equal the output of the model alone."""
    tokenizer, reference, running = Tokenizer.from_folder(MODEL), Reference(MODEL), []
    greedy = {"model": "storyteller", "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    for word in ("cat", "dog", "boy", "bird"):
        prompt = tuple(tokenizer.encode(f"{TEXT} {word}", add_special_tokens=True))
        body = json.dumps(greedy | {"prompt": prompt, "stream": True, "return_token_ids": True})
        curl = ("curl", "-sSN", "--max-time", "200", "-H", "Content-Type: application/json", "-d", body)
        command = on.hosts.command("left", *curl, f"{on.url('left')}/v1/completions")
        running.append((prompt, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    begun = [client.stdout.readline() for _, client in running if client.stdout is not None]
    fault()
    for (prompt, client), first in zip(running, begun, strict=True):
        with client:  # `communicate` would lose what `readline` has read ahead
            assert client.stdout is not None
            lines = [first, *client.stdout.read().splitlines()]
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        found = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
        assert reference.confirms(prompt, structs.replace(GREEDY, max_tokens=LONG), found), lines[-2:]
