"""The bundled model responds as the READMEs show, and draft tokens change only usage and metrics."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.printed.makers import SERVED, shown
from serving.values.sequence import SamplingParams
from tests.e2e.server import Server, wait_for
from tests.e2e.streams import order
from tests.e2e.topology import DEPLOY
from tests.live.workload import Ask, Reference
from tests.pages import PAGES

pytestmark = pytest.mark.slow


def test_readmes_show_what_a_fresh_system_answers(server: Server) -> None:
    assert list(SERVED) == ["story", "turns"], "as a reader does: the second finds a block of the first"
    for name, make in SERVED.items():
        printed = {page: found[name] for page in PAGES if name in (found := shown(page))}
        assert printed == dict.fromkeys(printed, make(server.url))


@pytest.fixture
def drafting() -> Iterator[Server]:
    """The same with speculation, enabled as a user does."""
    settings = ("--set", "cluster.dashboard_port=0", "--set", "engine.threads=1", "--set", "engine.draft_tokens=3")
    with Server(DEPLOY / "small.toml", *settings) as running:
        yield running


@pytest.mark.nightly("tests/live/test_every_engine.py::test_tokens")
def test_draft_tokens_in_usage_and_metrics(drafting: Server) -> None:
    server = drafting
    before = counters(server)
    ask = Ask((1, 300, 41, 507, 99), SamplingParams(temperature=0.0, max_tokens=60))
    answer = server.post("/v1/completions", order(ask, model="storyteller"))
    reference = Reference(DEPLOY / "models" / "storyteller")
    assert [choice["token_ids"] for choice in answer["choices"]] == reference.outputs(ask)
    details = answer["usage"]["completion_tokens_details"]
    positions = details["prediction_positions"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert accepted == sum(one["accepted"] for one in positions) > 0
    assert rejected == sum(one["rejected"] for one in positions)

    def added(name: str) -> float:
        return counters(server).get(name, 0.0) - before.get(name, 0.0)

    wait_for(lambda: added("vllm:spec_decode_num_accepted_tokens_total") == accepted, "counted")
    assert added("vllm:spec_decode_num_draft_tokens_total") == accepted + rejected
    assert added("vllm:spec_decode_num_drafts_total") > 0
    by_position = [added(f"vllm:spec_decode_num_accepted_tokens_per_pos_total {at}") for at in range(len(positions))]
    assert by_position == [one["accepted"] for one in positions]


def counters(server: Server) -> dict[str, float]:
    """The decode instance's counters of draft tokens, by name and position."""
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics")):
        for sample in family.samples:
            if sample.name.startswith("vllm:spec_decode") and sample.labels["pool"] == "decode":
                found[" ".join((sample.name, *filter(None, [sample.labels.get("position")])))] = sample.value
    return found
