"""An interrupt at any time leaves nothing; what a killed launcher leaves goes at the next start, if not before."""

import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.cluster.nodes import SEGMENT_PREFIX
from serving.values.sequence import SamplingParams
from tests.e2e.one_node.case import POOL
from tests.e2e.server import PATIENCE_S, SHARED_MEMORY, STOP_S, Server, wait_for
from tests.e2e.streams import order
from tests.e2e.topology import DEPLOY, small
from tests.live.workload import Ask, Reference
from tests.pages import PAGES
from tests.printed.blocks import shown
from tests.printed.makers import SERVED

pytestmark = pytest.mark.slow

DEMO = DEPLOY / "models/storyteller"


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    return small(tmp_path, checkpoint, prefill=1, decode=1)


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The system that will be killed first. It serves before, with speculation as a user switches it on."""
    config = small(tmp_path_factory.mktemp("guessing"), DEMO, prefill=1, decode=1)
    config.write_text(config.read_text().replace("[engine]", "[engine]\ndraft_tokens = 3") + POOL)
    with Server(config) as running:
        yield running


def interrupted_during_start(config: Path, moment: str, within_s: float) -> None:
    """Start, and interrupt when that moment is announced."""
    server = Server(config)
    try:
        server.launch()
        wait_for(lambda: moment in server.out, moment)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))  # as one of Ray's processes could, before the gateway is there
        took = server.interrupt()
        server.assert_nothing_left()
        assert server.process.returncode == 0
        assert took < within_s
        assert server.err == ""
    finally:
        server.end()


def test_interrupted_while_ray_starts(config: Path) -> None:
    """An interrupt waits for Ray: a half-started one could not be ended. So that takes what a start takes."""
    interrupted_during_start(config, "starting Ray", PATIENCE_S)


def test_guesses_in_tokens_usage_and_metrics(guessing: Server) -> None:
    ask = Ask((1, 300, 41, 507, 99), SamplingParams(temperature=0.0, max_tokens=60))
    answer = guessing.post("/v1/completions", order(ask))
    assert [choice["token_ids"] for choice in answer["choices"]] == Reference(DEMO).outputs(ask)
    details = answer["usage"]["completion_tokens_details"]
    positions = details["prediction_positions"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert accepted == sum(one["accepted"] for one in positions) > 0
    assert rejected == sum(one["rejected"] for one in positions)
    guessing.wait_idle()
    wait_for(lambda: counters(guessing).get("vllm:spec_decode_num_accepted_tokens_total") == accepted, "counted")
    seen = counters(guessing)
    assert seen["vllm:spec_decode_num_draft_tokens_total"] == accepted + rejected
    assert seen["vllm:spec_decode_num_drafts_total"] > 0
    by_position = [seen[f"vllm:spec_decode_num_accepted_tokens_per_pos_total {at}"] for at in range(len(positions))]
    assert by_position == [one["accepted"] for one in positions]


def test_readmes_show_what_a_fresh_system_answers(guessing: Server) -> None:
    """With speculation and without, the tokens are the same."""
    assert list(SERVED) == ["story", "turns"], "as a reader does: the second finds a block of the first"
    for name, make in SERVED.items():
        printed = {page: found[name] for page in PAGES if name in (found := shown(page))}
        assert printed == dict.fromkeys(printed, make(guessing.url))


def counters(server: Server) -> dict[str, float]:
    """The decode instance's counters of guesses, by name and position."""
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics")):
        for sample in family.samples:
            if sample.name.startswith("vllm:spec_decode") and sample.labels["pool"] == "decode":
                found[" ".join((sample.name, *filter(None, [sample.labels.get("position")])))] = sample.value
    return found


def test_what_a_killed_system_leaves_the_next_start_removes(guessing: Server, config: Path) -> None:
    """The small process beside the launcher was killed, too. The next start is interrupted when it has begun to deploy.

    Replicas that end last may have removed the memory of the first. What none of them has touched stays for certain.
    """
    (reaper,) = (pid for pid, title in guessing.processes().items() if "reaper.py" in title)
    guessing.process.send_signal(signal.SIGSTOP)  # it would start another one
    os.kill(reaper, signal.SIGKILL)
    left = guessing.kill_launcher()
    assert len(left) == 3, "one for each replica"
    wait_for(lambda: not guessing.processes(), "all has ended", 60, guessing.processes)
    half_made = SHARED_MEMORY / f"{SEGMENT_PREFIX}{secrets.token_hex(8)}"
    half_made.touch()
    interrupted_during_start(config, "deploying", 2 * STOP_S)
    assert not any(segment.exists() for segment in (*left, half_made))
