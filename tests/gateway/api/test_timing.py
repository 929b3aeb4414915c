"""vLLM's `metrics` object: each field from constructed time stamps, and where it is sent."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from serving.gateway.api.app import create_app
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.usage import Timing
from serving.telemetry.metrics import GatewayMetrics
from serving.values.jobs import SequenceUpdate
from serving.values.sequence import FinishReason
from tests.fakes.backend import output
from tests.gateway.api.batches import Batches
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
    assert timing.as_wire(1) == {"time_to_first_token_ms": 250.0, "generation_time_ms": 0.0, "tokens_per_second": 4.0}


def test_a_backend_with_a_coarser_clock_gives_no_negative_times() -> None:
    timing = Timing(10.0, queue_s=0.001)
    timing.token(10.0005)
    fields = timing.as_wire(1)
    assert fields["time_to_first_token_ms"] == 0.5
    assert "tokens_per_second" not in fields


class Stamped(Batches):
    """Two updates of one token each; the gateway's clock moves by 1/4 s with each."""

    now = 100.0

    async def next(self) -> Sequence[SequenceUpdate]:
        self.now += 0.25
        return await super().next()


def stamped(served: ServedModel) -> FastAPI:
    first, second = served.tokenizer.encode("a dog", add_special_tokens=False)[:2]
    begun = output((first,), cached_tokens=0, queue_s=0.125)
    backend = Stamped([begun], [output((second,), finish_reason=FinishReason.LENGTH)])
    return create_app(backend, served, ApiSettings(), GatewayMetrics("tiny", clock=lambda: backend.now))


TIMES = {
    "queue_time_ms": 125.0,
    "time_to_first_token_ms": 250.0,
    "generation_time_ms": 250.0,
    "mean_itl_ms": 250.0,
    "tokens_per_second": 5.333,
}


@pytest.mark.parametrize("ask", [chat, complete])
def test_in_a_whole_answer_and_on_the_usage_chunk_of_a_stream(served: ServedModel, ask: Callable[..., Any]) -> None:
    assert ask(stamped(served)).json()["metrics"] == TIMES
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, done = events(ask(stamped(served), stream=True, stream_options=options).text)
    assert done == "[DONE]"
    assert last["metrics"] == TIMES
    assert last["choices"] == []
    assert not any("metrics" in chunk for chunk in chunks)


def test_a_backend_that_does_not_tell_its_queue(fresh: Harness) -> None:
    fields = chat(fresh.app).json()["metrics"]
    assert set(fields) == KNOWN
    assert all(value >= 0 for value in fields.values())


def test_where_there_are_no_times(harness: Harness, make_harness: Callable[[ApiSettings], Harness]) -> None:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    app, off = harness.app, make_harness(ApiSettings(per_request_metrics=False)).app
    for reply in (
        chat(app, stream=True), chat(app, n=2), complete(app, prompt=["a dog", "a cat"]), chat(app, n=2, **usage),
        complete(app, max_tokens=0, echo=True), chat(off), chat(off, **usage),
    ):  # fmt: skip
        assert reply.status_code == 200
        assert '"metrics"' not in reply.text
