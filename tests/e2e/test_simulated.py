"""`deploy/cloudmatrix384-live.toml`: a simulated supernode on Ray, from a user's view."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import openai
import pytest

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.loads import DecodeLoad, PrefillLoad
from tests.e2e.server import STOP_S, Server, wait_for
from tests.e2e.topology import DEPLOY

pytestmark = pytest.mark.slow

COST = CostModel(load_device("ascend-910c"))
TEXT = "Once upon a time there was a supernode that could "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(shipped(tmp_path_factory.mktemp("config"))) as running:
        yield running
        took = running.interrupt()
        assert running.process.returncode == 0
        running.assert_nothing_left()
        assert took < STOP_S


def shipped(folder: Path) -> Path:
    """The shipped file with any free port for the dashboard."""
    text = (DEPLOY / "cloudmatrix384-live.toml").read_text()
    text = text.replace('"models/', f'"{DEPLOY}/models/')
    text = text.replace("[[cluster.nodes]]", "[cluster]\ndashboard_port = 0\n\n[[cluster.nodes]]", 1)
    path = folder / "live.toml"
    path.write_text(text)
    return path


def test_256_npus_are_placed_as_published(server: Server) -> None:
    status = server.cluster()
    assert status["npus"] == {"used": 256, "offered": 384}
    npus = {pool["name"]: [len(replica["npus"]) for replica in pool["replicas"]] for pool in status["pools"]}
    assert npus == {"prefill": [16] * 6, "decode": [160]}
    every = [npu for pool in status["pools"] for replica in pool["replicas"] for npu in replica["npus"]]
    assert len(set(every)) == 256
    assert {npu.partition(".")[0] for npu in every} <= {f"n{host}" for host in range(48)}
    (decode,) = server.replicas("decode")
    assert decode["hbm_capacity_bytes"] == 320 * 64 * 2**30
    assert status["kvcache"]["servers"][0]["dram"]["capacity_bytes"] == pytest.approx(4 * 2**40, rel=0.01)


def test_placeholder_tokens_are_called_so(server: Server) -> None:
    assert "  tokens           placeholders: simulated NPUs" in server.out
    answer = server.post("/v1/completions", {"model": "deepseek-r1", "prompt": [40] * 8, "max_tokens": 1})
    assert answer["system_fingerprint"].endswith("-placeholder-tokens")


@pytest.mark.real_time
def test_answers_come_when_the_cost_model_says(server: Server) -> None:
    asked = {"model": "deepseek-r1", "max_tokens": 171, "ignore_eos": True}
    server.post("/v1/completions", {**asked, "prompt": [41] * 4000, "max_tokens": 2})  # all connections are open now
    answers = [server.post("/v1/completions", {**asked, "prompt": [token] * 4000}) for token in (40, 42, 43)]
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [171] * 3
    ttft = COST.prefill_step_s(PrefillLoad(4000, 4000 * 2000, 32)) * 1e3
    told = [answer["metrics"]["time_to_first_token_ms"] for answer in answers]
    assert ttft <= min(told) < ttft + 60, "a machine that pauses adds to one of them"
    tpot = COST.decode_step_s(DecodeLoad(1, 4100, 1 / 320, 320, 1)) / 1.7 * 1e3
    assert min(answer["metrics"]["mean_itl_ms"] for answer in answers) == pytest.approx(tpot, rel=0.25)


def test_a_cached_prompt_is_pulled_from_the_pool(server: Server) -> None:
    asked = {"model": "deepseek-r1", "prompt": [50 + n % 40 for n in range(6 * 512)], "max_tokens": 2}
    server.post("/v1/completions", asked)
    wait_for(lambda: sum(s["entries"] for s in server.cluster()["kvcache"]["servers"]) >= 6, "blocks are stored")
    details = []
    for _ in range(6):  # by turns, most of them to instances that have never seen it
        details.append(server.post("/v1/completions", asked)["usage"]["prompt_tokens_details"])
    assert max(one["pulled_tokens"] for one in details) == 5 * 512
    assert all(one["cached_tokens"] == 5 * 512 for one in details)


def test_a_chat_ends_with_its_drawn_length_and_the_openai_client_reads_it(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        pieces = client.chat.completions.create(
            model="deepseek-r1", messages=[{"role": "user", "content": TEXT}], stream=True, seed=5
        )
        said = [piece.choices[0] for piece in pieces if piece.choices]
    assert said[-1].finish_reason == "stop"
    assert len("".join(choice.delta.content or "" for choice in said)) > 0


def test_metrics_tell_predicted_time(server: Server) -> None:
    name = "cloudmatrix:predicted_npu_seconds_total"

    def decode_seconds() -> float:
        lines = [line for line in server.get("/metrics").splitlines() if line.startswith(name) and "decode" in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    before = decode_seconds()
    server.post("/v1/completions", {"model": "deepseek-r1", "prompt": TEXT, "max_tokens": 100, "ignore_eos": True})
    step = COST.decode_step_s(DecodeLoad(1, 60, 1 / 320, 320, 1))
    wait_for(lambda: decode_seconds() - before > 160 * 99 / 1.7 * step * 0.8, "all NPUs were busy for all steps")


def test_a_killed_prefill_instance_costs_a_pause(server: Server) -> None:
    victims = [replica["pid"] for replica in server.replicas("prefill")]
    asked = {"model": "deepseek-r1", "max_tokens": 5, "ignore_eos": True}
    predicted = COST.prefill_step_s(PrefillLoad(60_000, 60_000 * 30_000, 32))
    assert predicted > 1.0, "long enough to be killed in the middle"
    with ThreadPoolExecutor(12) as clients:
        answers = [
            clients.submit(server.post, "/v1/completions", {**asked, "prompt": [60 + number] * 60_000})
            for number in range(12)
        ]
        time.sleep(predicted / 2)
        os.kill(victims[0], signal.SIGKILL)
        assert [answer.result()["usage"]["completion_tokens"] for answer in answers] == [5] * 12
    wait_for(lambda: victims[0] not in [r["pid"] for r in server.replicas("prefill")], "it is gone")
    wait_for(lambda: len(server.replicas("prefill")) == 6, "its replacement is there", state=server.cluster)


def _has(server: Server, replicas: int) -> bool:
    return len(server.replicas("prefill")) == replicas


@pytest.mark.nightly("tests/e2e/one_node/test_serving.py::test_the_decode_pool_grows_and_shrinks_under_load")
def test_the_prefill_pool_grows_and_shrinks(server: Server) -> None:
    for replicas in (7, 6):
        server.post(
            "/api/v1/applications/cloudmatrix/deployments/prefill/scale",
            {"target_num_replicas": replicas},
            url=server.printed("Ray dashboard"),
            headers={"Authorization": f"Bearer {server.printed('dashboard token')}"},
        )
        wait_for(partial(_has, server, replicas), f"{replicas} prefill instances")
        assert server.cluster()["npus"]["used"] == 160 + 16 * replicas


def test_nothing_was_left_behind_in_the_pools(server: Server) -> None:
    server.wait_idle()
    audit = json.loads(server.get("/cluster"))
    assert audit["gateway"] == {"running": 0, "queued": 0, "sequences": 0}
