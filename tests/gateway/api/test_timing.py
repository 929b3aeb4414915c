"""vLLM's `metrics` object: each field by hand-made stamps, and where it is sent."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings
from serving.gateway.api.timing import Timing
from serving.values.jobs import SequenceUpdate
from serving.values.sequence import FinishReason
from tests.fakes.backend import output
from tests.gateway.api.batches import play
from tests.gateway.api.support import Harness, chat, complete, events

KNOWN = {"time_to_first_token_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second"}


def test_each_field() -> None:
    timing = Timing(submitted=10.0, arrived=9.5, queue_s=0.5)
    for now in (10.75, 11.0, 11.75):
        timing.token(now)
    assert timing.as_wire(5) == {
        "queue_time_ms": 500.0,
        "time_to_first_token_ms": 1250.0,  # from the arrival at 9.5
        "generation_time_ms": 1000.0,  # 10.75 to 11.75
        "mean_itl_ms": 250.0,  # four gaps
        "tokens_per_second": 4.0,  # five tokens from 10.5 to 11.75
    }


def test_what_is_not_known_has_no_key() -> None:
    assert Timing(10.0).as_wire(0) == {}
    timing = Timing(10.0)
    timing.token(10.25)
    assert timing.as_wire(1) == {
        "time_to_first_token_ms": 250.0,
        "generation_time_ms": 0.0,
        "tokens_per_second": 4.0,
    }


def test_a_backend_with_a_coarser_clock_gives_no_negative_times() -> None:
    timing = Timing(10.0, queue_s=0.001)
    timing.token(10.0005)
    fields = timing.as_wire(1)
    assert fields["time_to_first_token_ms"] == 0.5
    assert "tokens_per_second" not in fields


def stamped(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates of one token each; the gateway's clock moves by 1/4 s with each of them."""
    first, second = harness.model.tokenizer.encode("a dog", add_special_tokens=False)[:2]
    now = 100.0
    begun = output((first,), cached_tokens=0, queue_s=0.125)
    backend = play(
        harness,
        monkeypatch,
        [begun],
        [output((second,), finish_reason=FinishReason.LENGTH)],
    )
    take = backend.next

    async def later() -> Sequence[SequenceUpdate]:
        nonlocal now
        now += 0.25
        return await take()

    monkeypatch.setattr(backend, "next", later)
    harness.metrics.clock = lambda: now


TIMES = {
    "queue_time_ms": 125.0,
    "time_to_first_token_ms": 250.0,
    "generation_time_ms": 250.0,
    "mean_itl_ms": 250.0,
    "tokens_per_second": 5.333,
}


@pytest.mark.parametrize("ask", [chat, complete])
def test_in_a_whole_answer(harness: Harness, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., Any]) -> None:
    stamped(harness, monkeypatch)
    assert ask(harness.app).json()["metrics"] == TIMES


@pytest.mark.parametrize("ask", [chat, complete])
def test_in_a_stream_on_the_usage_chunk_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., Any]
) -> None:
    stamped(harness, monkeypatch)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, done = events(ask(harness.app, stream=True, stream_options=options).text)
    assert done == "[DONE]"
    assert last["metrics"] == TIMES
    assert last["choices"] == []
    assert not any("metrics" in chunk for chunk in chunks)


def test_a_backend_that_does_not_tell_its_queue(harness: Harness) -> None:
    fields = chat(harness.app).json()["metrics"]
    assert set(fields) == KNOWN
    assert all(value >= 0 for value in fields.values())


def test_not_without_usage_in_a_stream(harness: Harness) -> None:
    assert '"metrics"' not in chat(harness.app, stream=True).text


def test_not_for_several_choices_or_prompts(harness: Harness) -> None:
    usage = {"include_usage": True}
    assert "metrics" not in chat(harness.app, n=2).json()
    assert "metrics" not in complete(harness.app, prompt=["a dog", "a cat"]).json()
    assert '"metrics"' not in chat(harness.app, n=2, stream=True, stream_options=usage).text


def test_not_for_an_answer_without_tokens(harness: Harness) -> None:
    assert "metrics" not in complete(harness.app, max_tokens=0, echo=True).json()


def test_not_if_it_is_switched_off(make_harness: Callable[[ApiSettings], Harness]) -> None:
    harness = make_harness(ApiSettings(per_request_metrics=False))
    assert "metrics" not in chat(harness.app).json()
    text = chat(harness.app, stream=True, stream_options={"include_usage": True}).text
    assert '"usage"' in text
    assert '"metrics"' not in text
