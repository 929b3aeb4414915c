"""Two hosts with equal labels, Ray's TLS and clocks that differ by an hour: a system is deployed, upgraded under load,
and removed; packets between the hosts are encrypted; nightly, one of them is cut off and returns.

One system for the whole file; the last test of the per-change run removes it.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.gateway.api.tokenizer import Tokenizer
from tests.deploy.ray_hosts import MODEL, TOKEN, RayHosts, left_behind, ray_hosts, steady
from tests.sockets.certificates import Authority

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parent / "places.toml"
PATIENCE_S = 180.0
CUT_S = 15.0
"""Three times the duration after which Ray declares a host dead in this setup."""
LABEL = "--labels=cloudmatrix-node=0"
HEALTH = '{"health_check_initial_delay_ms":0,"health_check_period_ms":1000,"health_check_timeout_ms":1000}'
STREAM = """
import json, sys, urllib.request as r
url, prompts, tokens = sys.argv[1], sys.argv[2].split("|"), int(sys.argv[3])
for number in range(int(sys.argv[4])):
    body = {"model": "storyteller", "prompt": prompts[number % len(prompts)], "max_tokens": tokens, "temperature": 0}
    ask = r.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with r.urlopen(ask, timeout=240) as answer:
        print(json.dumps([number % len(prompts), json.loads(answer.read())["choices"][0]["text"]]), flush=True)
"""
SECRETS = """
import logging, ray
from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import read_secrets
ray.init(address="auto", logging_level=logging.CRITICAL, log_to_driver=False)
print("SECRETS", *read_secrets(GcsStore()))
"""
CLOCK = Path(__file__).parent / "clock_off.cpp"
PROMPTS = ("Once upon a time there was a", "The little dog had a red", "One day Tom and his mother")


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that hosts see, since they have a separate /tmp."""
    with tempfile.TemporaryDirectory(prefix="places-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def equal_hosts(shared: Path) -> Iterator[RayHosts]:
    """A Ray on `left` and `right`, both with the label 0, the clock of `right` an hour ahead, and the system on it."""
    authority, clock = Authority(shared), shared / "clock_off.so"
    subprocess.run(["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(clock), str(CLOCK), "-ldl"], check=True)

    def variables(name: str, address: str) -> dict[str, str]:
        ahead = {"LD_PRELOAD": str(clock), "CLOCK_OFF_S": "3600"} if name == "right" else {}
        return authority.issue(address) | ahead

    health = (f"--system-config={HEALTH}",)
    with ray_hosts("left", "right", options=(LABEL,), head=health, variables=variables) as started:
        said = deploy(started)
        assert "2 hosts, 16 NPUs, 2048 MiB of UB memory; authentication token; TLS on" in said
        assert f"endpoint         {started.url('left')}/v1" in said
        yield started


def deploy(on: RayHosts, *options: str) -> str:
    """Deploy, or upgrade. Returns: the output."""
    return on.cloudmatrix("left", "serve", "--address", on.address, "--config", str(CONFIG), *options, timeout=400)


@contextlib.contextmanager
def captured(on: RayHosts, path: Path) -> Iterator[None]:
    """All packets of the second host, while the block runs."""
    command = on.hosts.command("right", sys.executable, "-m", "tests.deploy.talk", "capture", str(path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as capture:
        assert capture.stdout is not None
        assert capture.stdout.readline() == "ready\n"
        yield
        capture.communicate("", timeout=PATIENCE_S)


def status_of(on: RayHosts) -> dict[str, Any]:
    """Status of the cluster, from a gateway on the first host."""
    return on.hosts.get("left", f"{on.url('left')}/cluster")


def until(on: RayHosts, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status that fulfils a condition."""
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
    """Whether every pool has its target size."""
    pools, servers = status["pools"], status["kvcache"]["servers"]
    running = [[one for one in pool["replicas"] if one["state"] == "serving"] for pool in pools]
    return all(len(there) == 1 for there in running) and len(servers) == 2


def load(on: RayHosts, count: int) -> "subprocess.Popen[str]":
    """A client on the first host that sends one prompt after the other."""
    command = on.hosts.command("left", "python3", "-c", STREAM, on.url("left"), "|".join(PROMPTS), "48", str(count))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_equal_labels_are_told_apart_and_everything_is_spread(equal_hosts: RayHosts) -> None:
    status = until(equal_hosts, lambda status: whole(status) and len(status["hosts"]) == 2)
    assert sorted(host["name"] for host in status["hosts"]) == ["n0", "n1"]
    assert {host["npus_used"] for host in status["hosts"]} == {4}, "an instance on each"
    assert sorted({npu.partition(".")[0] for npu in npus(status)}) == ["n0", "n1"]
    assert len(set(npus(status))) == 8
    assert sorted(one["name"] for one in status["kvcache"]["servers"]) == ["kvcache-0-0", "kvcache-1-0"]
    for name in equal_hosts.names:
        equal_hosts.hosts.run("left", "curl", "-sSf", f"{equal_hosts.url(name)}/ready")


def test_a_clock_that_is_an_hour_off_is_found_and_nothing_else(equal_hosts: RayHosts) -> None:
    said = equal_hosts.cloudmatrix("left", "doctor", "--address", "auto", "--config", str(CONFIG), check=False)
    lines = [line for line in said.splitlines() if line.startswith("right (") and ": its clock is +3" in line]
    assert len(lines) == 1, said
    assert "1 problem found" in said


def test_with_tls_neither_token_nor_secret_nor_prompt_is_in_a_packet(equal_hosts: RayHosts, shared: Path) -> None:
    until(equal_hosts, whole)
    told = equal_hosts.run("left", sys.executable, "-c", SECRETS)
    secrets = told.partition("SECRETS")[2].split()
    assert secrets
    tokenizer = Tokenizer.from_folder(MODEL)
    ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in PROMPTS]
    with captured(equal_hosts, shared / "packets"), load(equal_hosts, 3) as client:
        answers = client.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert len(answers) == 3
    packets = (shared / "packets").read_bytes()
    assert len(packets) > 100_000, "a handoff went over the network"
    for hidden in (TOKEN, *secrets, *PROMPTS):
        assert hidden.encode() not in packets
    for prompt in ids:
        assert msgspec.msgpack.encode(prompt)[1:] not in packets


def test_two_upgrades_under_load(equal_hosts: RayHosts) -> None:
    """Live keys are applied in place, a pool whose keys changed is replaced, no request fails or differs. The second
    upgrade waits for the first, and earlier events are kept.
    """
    until(equal_hosts, whole)
    session = left_behind(equal_hosts, "left").splitlines()[-1]
    found: dict[str, Any] = {}
    live = ("--set", "gateway.max_n=3", "--set", "slo.ttft_s=7", "--set", "decode.max_sequences=32")
    with steady(equal_hosts, "left", found), ThreadPoolExecutor(2) as both:
        deploying = [both.submit(deploy, equal_hosts, *live, *more) for more in ((), ("--set", "slo.tpot_s=0.5"))]
        first, second = sorted((one.result() for one in deploying), key=lambda said: "waiting for another" in said)
    assert "waiting for another" not in first
    assert "gateway keeps running with new values of: gateway.max_n, slo.ttft_s" in first
    assert "decode restarts: decode.max_sequences" in first
    assert "waiting for another deployment to end: " in second
    assert "(decode, 1 of 1)" in second
    assert "gateway keeps running with new values of: slo.tpot_s\n" in second, "what the first one deployed stands"
    lines = equal_hosts.cloudmatrix("left", "decisions", "--last", "200").splitlines()
    stages = [at for at, line in enumerate(lines) if "deploys configuration" in line]
    ends = [lines[at].rpartition(": ")[2] for at in stages]
    assert ends[-4:] == ["decode, 1 of 1", "done", "no replica changes", "done"]
    assert any(" started " in line for line in lines[: stages[-4]]), "from before the upgrades"
    assert not any("set past the board" in line for line in lines), lines
    assert found["failures"] == []
    assert found["answers"] > 10
    assert found["texts"] == [1, 1, 1, 1]
    assert left_behind(equal_hosts, "left").splitlines()[-1] == session, "it is the same session"
    nobody = equal_hosts.cloudmatrix("right", "serve", "--address", "10.77.0.1:1", "--config", str(CONFIG), check=False)
    assert "Traceback" not in nobody
    assert "no Ray responds at 10.77.0.1:1" in nobody


@pytest.mark.nightly("tests/e2e/test_two_nodes.py::test_a_node_is_killed_and_comes_back")
def test_a_host_is_cut_off_and_comes_back(equal_hosts: RayHosts) -> None:
    until(equal_hosts, whole)
    with load(equal_hosts, 3) as alone:
        exact = dict(json.loads(line) for line in alone.communicate(timeout=PATIENCE_S)[0].splitlines())
    assert len(exact) == 3
    with load(equal_hosts, 40) as client:
        assert client.stdout is not None
        client.stdout.readline()
        equal_hosts.hosts.does("cut", "right")
        cut_at = time.monotonic()
        lost = until(equal_hosts, lambda status: any(host["lost_s"] is not None for host in status["hosts"]))
        assert lost["npus"]["offered"] == 8
        alone_there = until(equal_hosts, lambda status: whole_without(status, equal_hosts.hosts.addresses["right"]))
        assert len(set(npus(alone_there))) == len(npus(alone_there)) == 8
        time.sleep(max(0.0, cut_at + CUT_S - time.monotonic()))
        equal_hosts.hosts.does("join", "right")
        seen: list[dict[str, Any]] = []
        while client.poll() is None:
            seen.append(status_of(equal_hosts))
        out, errors = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 0, errors
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 39
    assert all(text == exact[number] for number, text in answers)
    for status in seen:  # the two halves are connected again, without duplicates
        assert len(set(npus(status))) == len(npus(status)), status
        names = [one["name"] for one in status["kvcache"]["servers"]]
        assert len(set(names)) == len(names), names


def whole_without(status: dict[str, Any], address: str) -> bool:
    """Whether instances serve, none of them on the host with that address."""
    host = next(one["name"] for one in status["hosts"] if one["address"] == address)
    serving = [one for pool in status["pools"] for one in pool["replicas"] if one["state"] == "serving"]
    return len(serving) == 2 and not any(npu.startswith(f"{host}.") for one in serving for npu in one["npus"])


@pytest.mark.nightly("tests/e2e/test_two_nodes.py::test_streams_and_prompts_survive_killed_instances")
def test_chaos_injures_processes_of_every_host(equal_hosts: RayHosts) -> None:
    until(equal_hosts, whole)
    scenario, url = CONFIG.with_name("chaos.toml"), equal_hosts.url("left")
    words = ("--scenario", str(scenario), "--url", url, "--address", "auto", "--json", "--quiet")
    said = equal_hosts.cloudmatrix("left", "chaos", *words)
    report = json.loads(said[re.search(r"^\{", said, re.MULTILINE).start() :])  # type: ignore[union-attr]  # after Ray's traces
    assert report["problems"] == []
    assert report["clean"], report
    hit = {(event["host"], event["pool"]) for event in report["events"]}
    assert {pool for _, pool in hit} == {"prefill", "decode", "kvcache"}
    assert {host for host, _ in hit} == {f"{name} ({equal_hosts.hosts.addresses[name]})" for name in equal_hosts.names}
    assert all(event["pid"] for event in report["events"])


@pytest.mark.nightly("tests/cluster/test_node_table.py::test_a_node_that_returns_gets_its_number")
def test_a_host_that_was_off_gets_its_number_again(equal_hosts: RayHosts) -> None:
    equal_hosts.hosts.does("kill", "right")
    before = until(equal_hosts, lambda status: [host["lost_s"] is None for host in status["hosts"]] == [True, False])
    equal_hosts.hosts.does("up", "right")
    equal_hosts.start("right", LABEL)
    status = until(equal_hosts, lambda status: [host["lost_s"] for host in status["hosts"]] == [None, None])
    number = {host["address"]: host["name"] for host in before["hosts"]}
    assert {host["address"]: host["name"] for host in status["hosts"]} == number
    until(equal_hosts, whole)


def test_the_system_is_taken_away(equal_hosts: RayHosts) -> None:
    """From the head: the host that was cut off has no Ray until it is started there again."""
    said = equal_hosts.cloudmatrix("left", "down", "--address", equal_hosts.address)
    assert "removed cloudmatrix" in said
    assert left_behind(equal_hosts, "left") == ""
    assert "no system was deployed" in equal_hosts.cloudmatrix("left", "down")
