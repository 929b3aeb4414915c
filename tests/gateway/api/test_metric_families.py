"""All series of one family count the same events, whatever the outcome of the requests."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.errors import EngineError, OverloadedError, UnavailableError
from serving.values.sequence import PoolUse
from tests.gateway.api.client import start, until
from tests.gateway.api.support import Harness, chat, complete, request
from tests.telemetry.samples import PER_CHOICE, PER_REQUEST, samples

USE = PoolUse(2, 3, "timeout")


@dataclass(frozen=True)
class Expected:
    """Expected number of each kind of event. Series without an entry have their reason in the names next to it."""

    prompts: int = 0
    """Prompts that an instance started to compute."""
    with_token: int = 0
    """Choices that got a token."""
    good: int = 0
    whole: int = 0
    abort: int = 0
    error: int = 0
    rejected: int = 0
    status: str = "200"


def leave(harness: Harness, after: int) -> None:
    """A client that disconnects after this many tokens of each of two choices."""
    harness.script_of = lambda _: harness.say("Once upon a time", hang_after=after, cached_tokens=2, pool=USE)

    async def go() -> None:
        body = {"model": "tiny", "prompt": "The dog", "n": 2}
        exchange, task = start(harness.app, "/v1/completions", body)
        await until(
            lambda: bool(harness.backend.generations) and min(harness.backend.generations[0].delivered) >= after
        )
        exchange.gone.set()
        await task

    asyncio.run(go())


def fail(harness: Harness, after: int) -> None:
    harness.script_of = lambda _: harness.say(
        "Once upon a time", fail_after=after, error=EngineError("broken"), cached_tokens=2, pool=USE
    )
    complete(harness.app, prompt=["The dog", "The cat"], n=2)


def refuse(harness: Harness, error: Exception) -> None:
    harness.backend.refuse = error
    chat(harness.app)


CASES: dict[str, tuple[Callable[[Harness], object], Expected]] = {
    "one": (lambda h: chat(h.app), Expected(prompts=1, with_token=1, good=1, whole=1)),
    "a stream": (lambda h: chat(h.app, stream=True), Expected(prompts=1, with_token=1, good=1, whole=1)),
    "n": (lambda h: chat(h.app, n=3), Expected(prompts=1, with_token=3, good=3, whole=1)),
    "prompts": (
        lambda h: complete(h.app, prompt=["a dog", "a cat"], n=2),
        Expected(prompts=2, with_token=4, good=4, whole=1),
    ),
    "no output": (lambda h: complete(h.app, max_tokens=0, echo=True), Expected(prompts=1, good=1, whole=1)),
    "left before work": (lambda h: leave(h, 0), Expected(abort=2, status="499")),
    "left midway": (lambda h: leave(h, 1), Expected(prompts=1, with_token=2, abort=2, status="499")),
    "failed before work": (lambda h: fail(h, 0), Expected(error=4, status="500")),
    "failed midway": (lambda h: fail(h, 1), Expected(prompts=2, with_token=4, error=4, status="500")),
    "overloaded": (lambda h: refuse(h, OverloadedError("full", retry_after_s=1.0)), Expected(rejected=1, status="429")),
    "unavailable": (
        lambda h: refuse(h, UnavailableError("nobody", retry_after_s=1.0)),
        Expected(rejected=1, status="503"),
    ),
    "never submitted": (lambda h: chat(h.app, max_tokens=-1), Expected(status="400")),
}


class Series:
    """Current values of all series of an application."""

    def __init__(self, harness: Harness) -> None:
        self.found = samples(harness.metrics)

    def total(self, name: str, **labels: str) -> float:
        """Sum of all series with that name and these labels."""
        return sum(value for (of, own), value in self.found.items() if of == name and frozenset(labels.items()) <= own)

    def count(self, name: str) -> float:
        return self.total(f"vllm:{name}_count")


@pytest.mark.parametrize("case", CASES)
def test_series_of_a_family_count_the_same_events(fresh: Harness, case: str) -> None:
    act, expected = CASES[case]
    fresh.script_of = lambda _: fresh.say("Once upon a time", cached_tokens=2, pool=USE)
    act(fresh)
    series = Series(fresh)
    total, count = series.total, series.count
    assert {name: count(name) for name in PER_CHOICE} == dict.fromkeys(PER_CHOICE, expected.good)
    assert {name: count(name) for name in PER_REQUEST if name != "request_params_max_tokens"} == {
        "request_params_n": expected.whole, "request_max_num_generation_tokens": expected.whole,
    }  # fmt: skip
    assert count("time_to_first_token_seconds") == expected.with_token
    ends = {reason: total("vllm:request_success_total", finished_reason=reason) for reason in ("abort", "error")}
    assert ends == {"abort": expected.abort, "error": expected.error}
    assert total("vllm:request_success_total") == expected.good + expected.abort + expected.error
    assert total("vllm:admission_rejections_total") == expected.rejected

    lengths = [len(spec.prompt) for job in fresh.backend.jobs for spec in job.sequences]
    prompt_tokens = total("vllm:prompt_tokens_total")
    assert prompt_tokens == (lengths[0] * expected.prompts if lengths else 0), "prompts of a case are equally long"
    assert total("vllm:prompt_tokens_cached_total") == 2 * expected.prompts
    assert total("cloudmatrix:prompt_tokens_pulled_total") == USE.pulled_tokens * expected.prompts
    recomputed = total("cloudmatrix:prompt_tokens_recomputed_total", reason="timeout")
    assert recomputed == USE.recomputed_tokens * expected.prompts

    assert total("http_requests_total") == total("http_request_duration_seconds_count") == 1
    assert total("http_requests_total", status=expected.status) == 1
    assert fresh.metrics.in_flight == 0


def test_output_tokens_and_the_gaps_between_them_fit_together(fresh: Harness) -> None:
    """Every token is the first of its choice, or ends one gap."""
    for case in CASES:
        CASES[case][0](fresh)
        fresh.backend.refuse, fresh.script_of = None, lambda _: fresh.say("Once upon a time")
    total = Series(fresh).total
    tokens = total("vllm:generation_tokens_total")
    firsts = total("vllm:time_to_first_token_seconds_count")
    assert tokens == firsts + total("vllm:inter_token_latency_seconds_count") > 0


def test_labelled_counters_of_requests_are_there_before_the_first_one(fresh: Harness) -> None:
    text = request(fresh.app, "GET", "/metrics").text
    labelled = {
        family.name: [sample.value for sample in family.samples]
        for family in text_string_to_metric_families(text)
        if family.type == "counter"
    }
    assert all(values and not any(values) for values in labelled.values()), labelled
    assert {"http_requests", "cloudmatrix:namespace_prompt_tokens", "vllm:request_success"} <= labelled.keys()
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert f'handler="{path}",method="POST",model_name="tiny",status="500"' in text
