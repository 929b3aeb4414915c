"""Guessing as a user switches it on: the same tokens, told in usage and metrics."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.values.sequence import SamplingParams
from tests.e2e.server import Server, wait_for
from tests.e2e.streams import order
from tests.e2e.topology import DEPLOY, small
from tests.live.workload import Ask, Reference

pytestmark = pytest.mark.slow

DEMO = DEPLOY / "models/storyteller"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), DEMO, prefill=1, decode=1)
    config.write_text(config.read_text().replace("[engine]", "[engine]\ndraft_tokens = 3"))
    with Server(config) as running:
        yield running
        running.interrupt()
        running.assert_nothing_left()


def test_tokens_usage_and_metrics(server: Server) -> None:
    ask = Ask((1, 300, 41, 507, 99), SamplingParams(temperature=0.0, max_tokens=60))
    answer = server.post("/v1/completions", order(ask))
    assert [choice["token_ids"] for choice in answer["choices"]] == Reference(DEMO).outputs(ask)
    details = answer["usage"]["completion_tokens_details"]
    positions = details["prediction_positions"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert accepted == sum(one["accepted"] for one in positions) > 0
    assert rejected == sum(one["rejected"] for one in positions)
    server.wait_idle()
    wait_for(lambda: counters(server).get("vllm:spec_decode_num_accepted_tokens_total") == accepted, "counted")
    seen = counters(server)
    assert seen["vllm:spec_decode_num_draft_tokens_total"] == accepted + rejected
    assert seen["vllm:spec_decode_num_drafts_total"] > 0
    by_position = [seen[f"vllm:spec_decode_num_accepted_tokens_per_pos_total {at}"] for at in range(len(positions))]
    assert by_position == [one["accepted"] for one in positions]


def counters(server: Server) -> dict[str, float]:
    """The decode instance's counters of guesses, by name and position."""
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics")):
        for sample in family.samples:
            if sample.name.startswith("vllm:spec_decode") and sample.labels["pool"] == "decode":
                found[" ".join((sample.name, *filter(None, [sample.labels.get("position")])))] = sample.value
    return found
