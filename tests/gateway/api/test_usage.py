"""Cached prompt tokens in `usage`, and the effect of requests on the metrics."""

from dataclasses import replace
from typing import Any

import pytest

from serving.telemetry.request_timeline import RESUME_SOURCES, RecentSessions
from serving.values.pool_outcome import MissReason
from serving.values.sequence import PoolUse, SequenceSpec
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, chat, complete, events, request
from tests.telemetry.samples import value


def play(harness: Harness, cached: int, pool: PoolUse | None) -> None:
    harness.script_of = lambda _: harness.say("Once", cached_tokens=cached, pool=pool)


def details(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["usage"]["prompt_tokens_details"]
    return found


def test_without_a_pool_there_are_no_keys_about_it(harness: Harness) -> None:
    play(harness, 4, None)
    assert details(chat(harness.app).json()) == {"cached_tokens": 4}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (PoolUse(), {"pulled_tokens": 0, "recomputed_tokens": 0}),
        (PoolUse(pulled_tokens=3), {"pulled_tokens": 3, "recomputed_tokens": 0}),
        (
            PoolUse(3, 2, MissReason.CHECKSUM.value),
            {"pulled_tokens": 3, "recomputed_tokens": 2, "recompute_reasons": {"checksum": 2}},
        ),
        (PoolUse(0, 2), {"pulled_tokens": 0, "recomputed_tokens": 2, "recompute_reasons": {"error": 2}}),
    ],
)
def test_with_a_pool(harness: Harness, use: PoolUse, expected: dict[str, Any]) -> None:
    play(harness, 4, use)
    assert details(chat(harness.app).json()) == {"cached_tokens": 4, **expected}
    stream = events(chat(harness.app, stream=True, stream_options={"include_usage": True}).text)
    assert details(stream[-2]) == {"cached_tokens": 4, **expected}


def test_each_prompt_counts_once_and_choices_of_it_do_not_add(harness: Harness) -> None:
    def script(spec: SequenceSpec) -> Script:
        index = int(spec.sequence_id.rpartition("/")[2])
        reason = "timeout" if index < 2 else "gone"
        return harness.say("Once", cached_tokens=10 + index, pool=PoolUse(1 + index, 2, reason))

    harness.script_of = script
    answer = complete(harness.app, prompt=["The dog", "The cat"], n=2).json()
    assert details(answer) == {
        "cached_tokens": 10 + 12,
        "pulled_tokens": 1 + 3,
        "recomputed_tokens": 4,
        "recompute_reasons": {"timeout": 2, "gone": 2},
    }


def test_counts_reach_the_metrics(fresh: Harness) -> None:
    play(fresh, 4, PoolUse(3, 2, "timeout"))
    chat(fresh.app)
    chat(fresh.app, stream=True)
    assert value(fresh.metrics, "vllm:prompt_tokens_cached_total") == 8
    assert value(fresh.metrics, "cloudmatrix:prompt_tokens_pulled_total") == 6
    assert value(fresh.metrics, "cloudmatrix:prompt_tokens_recomputed_total", reason="timeout") == 4
    text = fresh.metrics.render(namespaces=True).decode()
    assert 'namespace_prompt_tokens_cached_total{engine="0",model_name="tiny",namespace="default"} 8.0' in text


def test_tokens_of_next_turns_are_counted_by_source(fresh: Harness) -> None:
    def counts() -> dict[str, float | None]:
        name = "cloudmatrix:kv_resume_tokens_total"
        return {source: value(fresh.metrics, name, **{"from": source}) for source in RESUME_SOURCES}

    play(fresh, 4, PoolUse(3, 0, None, 1))
    chat(fresh.app)
    chat(fresh.app)
    chat(fresh.app, prompt_cache_key="a")
    assert counts() == dict.fromkeys(RESUME_SOURCES, 0), "no session, or a session's first turn"
    prompt = chat(fresh.app, prompt_cache_key="a").json()["usage"]["prompt_tokens"]
    assert counts() == {"hbm": 1, "dram": 2, "ssd": 1, "computed": prompt - 4}


def test_sessions_remembered_are_bounded() -> None:
    recent = RecentSessions(2)
    assert [recent.note("n", name) for name in ("a", "b", "a", "c", "a", "b")] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert not recent.note("other", "a"), "another tenant's session of this name"
    assert not recent.note("n", "")


@pytest.mark.parametrize(
    ("facts", "told"),
    [({}, {}), ({"resumptions": 2}, {"resumptions": 4}), ({"masked": 3}, {"masked_tokens": 6})],
)
def test_choices_that_went_on_elsewhere_or_without_experts_are_told(
    harness: Harness, facts: dict[str, Any], told: dict[str, int]
) -> None:
    harness.script_of = lambda _: replace(harness.say("Once upon"), **facts)
    whole = complete(harness.app, prompt="The dog", n=2).json()["usage"]
    how = {"stream": True, "stream_options": {"include_usage": True}}
    stream = events(complete(harness.app, prompt="The dog", n=2, **how).text)
    for usage in (whole, stream[-2]["usage"]):
        assert {key: value for key, value in usage.items() if key in ("resumptions", "masked_tokens")} == told


def test_requests_are_on_the_page_and_unknown_paths_share_one_series(fresh: Harness) -> None:
    for path in ("/a", "/b", "/c"):
        request(fresh.app, "GET", path)
    assert value(fresh.metrics, "http_requests_total", handler="none") == 3
    timeline = fresh.metrics.request_started([1], 1, None, arrived=0.0)
    assert request(fresh.app, "GET", "/load").json() == {"server_load": 1}
    timeline.ended()
    assert request(fresh.app, "GET", "/load").json() == {"server_load": 0}
    reply = request(fresh.app, "GET", "/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"}' in reply.text
