"""A response generated twice, cut in other places the second time: its stored events continue as one stream."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.errors import EngineError
from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.form import Answering
from serving.gateway.api.http.tenant import KeyRing
from serving.gateway.api.responses.form import ResponseEvents, ResponseFrame
from serving.gateway.api.responses.resumption import ContinuedEvents, payload_of
from serving.gateway.api.responses.routes import repeated_fields
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.schema import CompletionRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart, call_id
from serving.gateway.api.translate import completion_order
from serving.values.sequence import TokenLogprobs

SEGMENTS = st.lists(st.tuples(st.sampled_from(["think", "say", "call"]), st.text(min_size=1, max_size=8)), max_size=5)


@pytest.fixture(scope="module", params=[None, 0])
def answering(served: ServedModel, request: pytest.FixtureRequest) -> Answering:
    tenant = KeyRing(ApiSettings()).identify(None)
    body = CompletionRequest(prompt="a dog", max_tokens=50, logprobs=request.param)
    return Answering(completion_order(body, served, ApiSettings(), tenant), [], served.tokenizer)


def encoder(answering: Answering) -> ResponseEvents:
    body = ResponsesRequest(input="a dog", background=True)
    return ResponseEvents(answering, ResponseFrame(repeated_fields(body, stored=True), False, lambda _: None))


def batches(segments: list[tuple[str, str]], cuts: random.Random, *, logprobs: bool) -> list[list[tuple[int, Visible]]]:
    """The same output, cut as chance has it; each character is a token."""
    parts: list[Part] = []
    for number, (kind, text) in enumerate(segments):
        if kind == "call":
            parts.append(CallPart(number, id=call_id(), name="look_up"))
        start = 0
        while start < len(text):
            piece = text[start : start + cuts.randint(1, 4)]
            start += len(piece)
            parts.append(
                CallPart(number, piece) if kind == "call" else ReasoningPart(piece) if kind == "think" else piece
            )
    found = []
    while parts:
        count = 1 if logprobs else cuts.randint(1, 3)
        now, parts = parts[:count], parts[count:]
        text = now[0] if isinstance(now[0], str) else ""
        entries = [LogprobEntry(ord(one) % 200 + 4, 0, TokenLogprobs(ord(one) % 200 + 4, -0.5)) for one in text]
        found.append([(0, Visible(parts=now, logprobs=entries if logprobs else []))])
    return [*found, [(0, Visible(finish="stop"))]]


def run(
    answering: Answering, segments: list[tuple[str, str]], cuts: random.Random, stored: list[Any], most: int
) -> list[Any]:
    """One run until it is killed. Returns: the events stored then."""
    made, logprobs = encoder(answering), answering.order.options.logprobs is not None
    events = ContinuedEvents(made, stored)
    stored = stored + [payload_of(one) for one in events.fresh(made.accepted())]
    for batch in batches(segments, cuts, logprobs=logprobs):
        if most <= 0:
            return stored
        most -= 1
        if cuts.random() < 0.1:
            stored = stored + [payload_of(one) for one in events.silence()]
        stored = stored + [payload_of(one) for one in events.fresh(made.batch(batch))]
    return stored + [payload_of(one) for one in events.fresh(made.closing({}))]


def said(events: list[Any]) -> tuple[list[Any], dict[str, str], dict[str, list[Any]]]:
    """Parts that do not depend on the cuts: all events but deltas; text and log-probabilities of each item."""
    marks: list[Any] = []
    texts: dict[str, str] = {}
    logprobs: dict[str, list[Any]] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            assert event["delta"], "no delta is empty"
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
            logprobs[event["item_id"]] = logprobs.get(event["item_id"], []) + event.get("logprobs", [])
        elif event["type"] not in ("response.in_progress", "response.queued"):
            marks.append({**event, "sequence_number": 0})
    return marks, texts, logprobs


@given(segments=SEGMENTS, seed=st.integers(0, 2**32), kills=st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_continued_response_is_one_stream(
    answering: Answering, segments: list[tuple[str, str]], seed: int, kills: list[int]
) -> None:
    segments = [one for index, one in enumerate(segments) if index == 0 or one[0] != segments[index - 1][0]]
    cuts = random.Random(seed)
    events: list[Any] = []
    for most in (*kills, 1000):
        before = events
        if not before or not before[-1]["type"].endswith("completed"):
            events = run(answering, segments, cuts, before, most)
        assert events[: len(before)] == before
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert said(events) == said(run(answering, segments, random.Random(0), [], 1000))
    assert all(one["type"] != other["type"] or one["type"].endswith((".delta", "queued", "progress"))
               for one, other in pairwise(events))  # fmt: skip


def test_another_text_is_noticed(answering: Answering) -> None:
    stored = run(answering, [("say", "Once upon")], random.Random(1), [], 2)
    with pytest.raises(EngineError, match="could not be continued"):
        run(answering, [("say", "Never")], random.Random(2), stored, 1000)
